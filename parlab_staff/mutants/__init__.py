"""Mutation testing of the checks: they must notice small mistakes in the references.

    make mutants                        # all exercises; records scores in tests/mutants/scores.csv
    make mutants ARGS="ring_shift"      # one of them
    parlab try ring_shift --mutants     # the same, and nothing is written

A mutant is a reference with one change by an operator (a neighbor off by one, a dropped wait, <
for ≤, …). The exercise's check and hidden check test it on real ranks. A mutant survives if either
of them accepts it. Then either the check lacks a requirement for something that the exercise's text
demands, or the mutant is right, and `tests/mutants/*.toml` says why.
"""
