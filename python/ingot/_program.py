"""The command `ingot`: the program that is in the package."""

import os
import sys


def main():
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "ingot")
    if not os.path.exists(program):
        sys.exit(f"error: {program} is not in this package (build ingot, and put it there or on the path)")
    os.execv(program, ["ingot", *sys.argv[1:]])
