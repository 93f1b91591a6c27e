"""Runs random rank cells on one kernel, and checks the kernel and the ranks after each cell.

`.venv/bin/python -m tests.soak MINUTES --seed SEED` prints the counts by kind and each violation. A
cell depends only on the seed and on its number, so `--seed SEED --first NUMBER` repeats a run from
that cell.
"""
