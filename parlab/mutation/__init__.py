"""Mutation testing of the checks: small mistakes are put into the references, and must be noticed.

    make mutants                        # all exercises, some minutes; writes tests/mutants/*.json
    make mutants ARGS="ring_shift"      # one of them
    parlab try ring_shift --mutants     # the same, and nothing is written

A mutant is a reference with one change by an operator (a neighbour off by one, a dropped wait, <
for ≤, …). It runs on real ranks against the exercise's check and its hidden check. It is killed
when both reject it. What survives shows a promise of the exercise's text that no requirement
holds answers to, or it is right: then `tests/mutants/*.toml` says why.
"""
