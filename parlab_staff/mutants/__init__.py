"""Mutation testing of the checks: they must notice small mistakes in the references.

    make mutants                        # all exercises; records scores in tests/mutants/scores.csv
    make mutants ARGS="ring_shift"      # one of them
    parlab try ring_shift --mutants     # the same, and nothing is written

A mutant is a reference with one change by an operator (a neighbor off by one, a dropped wait, <
for ≤, …). It runs on real ranks against the exercise's check and its hidden check. A mutant that
either of them accepts survives. Either the check lacks a requirement for a promise of the
exercise's text, or the mutant is right: then `tests/mutants/*.toml` says why.
"""
