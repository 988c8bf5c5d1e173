"""Rows of engines and their probes are the same lists. probes_test.py INGOT REPOSITORY

Every load, limit, reading and pin of an engine's newest version, and every family, has a probe or the reason why it has
none, and every probe is of such a row, or of a reading that versions share (reader.*)."""

import json
import pathlib
import subprocess
import sys

ingot, root = sys.argv[1], pathlib.Path(sys.argv[2])
sys.path.insert(0, str(root / "scripts/engines"))
import read  # noqa: E402


def rows(table):
    return json.loads(subprocess.run([ingot, "list", table, "--json"], check=True, capture_output=True, text=True).stdout)[table]


WORDS = {row["engine"]: row["for"] for row in rows("loads")}
ids = {word: set() for word in WORDS.values()}
for table in ("loads", "engines", "readings"):
    for row in rows(table):
        if row["id"]:
            ids[WORDS[row["engine"]]].add(row["id"])
for row in rows("trials"):
    ids[WORDS[row["engine"]]].add(f"family.{row['family']}")

faults = []
probed = {}
for path in sorted((root / "engines/versions").glob("*.json")):
    probes = read.load_probes(path)
    engine = probes["engine"]
    seen = probed.setdefault(engine, set())
    for probe in probes["probes"]:
        names = probe["id"] if isinstance(probe["id"], list) else [probe["id"]]
        faults += [f"{path.name}: two probes of {name}" for name in names if name in seen]
        seen.update(names)
        if ("unprobed" in probe) == ("checks" in probe) or not probe.get("unprobed", probe.get("checks")):
            faults.append(f"{path.name}: {names[0]} has neither checks nor a reason, or both")
        for check in probe.get("checks", []):
            if not (check.keys() & {"has", "lacks", "class", "nowhere", "requires"}):
                faults.append(f"{path.name}: {names[0]} has a check that asks nothing")
            for fragment in check.get("has", []) + check.get("lacks", []):
                read.pattern_of(fragment)
for engine in sorted(ids.keys() | probed.keys()):
    of_rows, of_probes = ids.get(engine, set()), probed.get(engine, set())
    faults += [f"{engine}: {row} has no probe (engines/versions/*.json)" for row in sorted(of_rows - of_probes)]
    faults += [f"{engine}: a probe of {row}, which is no row" for row in sorted(of_probes - of_rows)
               if not row.startswith("reader.")]
if not all(len(known) > 1 for known in ids.values()) or len(ids["vllm"]) < 100:
    faults.append("ingot list gave hardly any rows")
print("\n".join(faults))
sys.exit(bool(faults))
