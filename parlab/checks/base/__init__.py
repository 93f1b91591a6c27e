"""The parts that every check uses: trials on ranks, requirements, and named mistakes."""
