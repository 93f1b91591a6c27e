"""`python -m parlab.rank.engine`: the engine of one rank, as its supervisor starts it."""

from parlab.rank.engine.starting import main

main()
