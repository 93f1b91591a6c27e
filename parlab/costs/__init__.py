"""Closed forms for what training costs: bytes, seconds and FLOP, before anything runs.

collectives     messages and collectives in the α–β model
data_parallel   a training step on many ranks: traffic, time, efficiency

Sizes are in bytes, times in seconds, as floats: a formula is not rounded to whole messages.
"""
