"""Judges claims about JSON documents, for `holds` of expect.sh: reads lines in threes (a file, statements that name parts
of its document d, a claim) and answers each with a line, which is empty where the claim holds."""
import json
import sys

while path := sys.stdin.readline():
    names = {"json": json}
    statements, claim = sys.stdin.readline(), sys.stdin.readline()
    try:
        with open(path.rstrip("\n")) as file:
            names["d"] = json.load(file)
        exec(statements, names)
        print("" if eval(claim, names) else repr(names["d"])[-400:], flush=True)
    except Exception as error:
        print(repr(error)[-400:], flush=True)
