"""What every check is built from: trials on ranks, requirements, and named mistakes."""
