"""Sets up a machine, checks it, and defines the commands that a learner types."""
