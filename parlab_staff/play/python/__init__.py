"""Python files for the ranks of a page. There, this folder is on `sys.path`."""
