"""Python files for the ranks of a page, where this folder is on `sys.path`."""
