"""`python -m engram.cli` is the command `engram`."""

from engram.cli import main

main()
