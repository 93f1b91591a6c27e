"""Files of other projects that the playground contains (see README.md)."""
