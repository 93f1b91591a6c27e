"""Mutation testing of the checks: they must notice small mistakes in the references.

    make mutants                        # all exercises; records scores in tests/mutants/scores.csv
    make mutants ARGS="ring_shift"      # one exercise
    parlab try ring_shift --mutants     # the same, but nothing is written

A mutant is a reference with one change by an operator (a neighbor off by one, a dropped wait, <
for ≤, …). The exercise's check and hidden check test it on real ranks. `make mutants` lists each
mutant that at least one of them accepts. Then either the check does not test something that the
exercise's text demands, or the mutant is right, and `tests/mutants/*.toml` says why. (The table in
the book counts as survivors only those that the visible check accepts.)
"""
