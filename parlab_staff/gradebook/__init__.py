"""From scores to a gradebook, feedback for each student, and a summary."""
