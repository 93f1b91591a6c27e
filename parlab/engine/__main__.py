"""`python -m parlab.engine`: the engine of one rank, as its supervisor starts it."""

from parlab.engine.starting import main

main()
