"""Measurements that pages of the book show, each recorded by one command as JSON."""
