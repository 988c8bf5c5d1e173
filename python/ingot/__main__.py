"""`python -m ingot` is the command `ingot`."""

from ingot._program import main

main()
