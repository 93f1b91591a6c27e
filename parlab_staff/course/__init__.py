"""The model of a lab: its source, its cells, its exercises, and its reference solutions."""
