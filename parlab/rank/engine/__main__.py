"""`python -m parlab.rank.engine` runs the engine of one rank. Its supervisor starts it."""

from parlab.rank.engine.starting import main

main()
