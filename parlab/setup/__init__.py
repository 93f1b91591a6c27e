"""Setting up a machine, checking it, and the commands that a learner types."""
