#!/usr/bin/env bash
# scripts/real_configs.sh DIR [INGOT]: puts published metadata before ingot, and prints a row for each release.
#
# DIR holds a folder for each release, with its config.json and, where they are known, the names of its tensors
# (model.safetensors.index.json, also gzipped). The weights are not needed: `ingot synth --like headers` makes the
# model of a config in BF16 as files with holes, which `inspect`, `check` and dry runs of `convert` then read. A folder
# that holds .safetensors files (headers with holes will do) is read as it is.
#
# Columns: the config's model_type and what quantized it; tensors and parameters that inspect counts; how many names of
# the release's index the model lacks (-) or has besides (+), scales left out; what check says; what dry runs say.
# ok: exit code 0; N warn: with so many warnings; otherwise the first rule or error. N load: so many of the modelled
# engines load the output. Dry runs assume a disk that is large enough, and each processor has a release at a time.
# Exit code 1 when a command ended in another way than 0, 1 or 2, or took more than 300 s. Needs python3.
set -uo pipefail
dir=$(cd "${1:?usage: scripts/real_configs.sh DIR [INGOT]}" && pwd)
ingot=$(realpath "${2:-$(dirname "$0")/../build/release/cli/ingot}")
export INGOT=$ingot
exec python3 - "$dir" <<'PYTHON'
import concurrent.futures, glob, gzip, json, os, re, shutil, subprocess, sys, tempfile

INGOT, ROOT = os.environ["INGOT"], sys.argv[1]
SCHEMES = ("fp8", "int8", "nvfp4")
PARTS = re.compile(r"(\.|_)(weight_scale_inv|weight_scale_2|weight_scale|weight_zero_point|weight_global_scale|input_scale|"
                   r"input_global_scale|activation_scale|[kvq]_scale|kv_scale|scale|scales|qzeros|g_idx|weight_shape)$")
PACKED = re.compile(r"(\.weight_packed|\.qweight|_blocks)$")
worst = 0


def run(*words):
    """Exit code, the JSON document, and standard error of one command."""
    global worst
    try:
        done = subprocess.run((INGOT,) + words, capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        worst = 1
        return 124, {}, "more than 300 s"
    if done.returncode not in (0, 1, 2):
        worst = 1
    try:
        return done.returncode, json.loads(done.stdout), done.stderr
    except ValueError:
        return done.returncode, {}, done.stderr


def verdict(code, doc):
    if code == 124:
        return "> 300 s"
    if code not in (0, 1, 2):
        return f"EXIT {code}"
    error = (doc.get("error") or {}).get("text", "")
    loads = f", {sum(e['loads'] for e in doc['engines'])} load" if "engines" in doc else ""
    if error:
        return "error: " + re.sub(r"^\S*/", "", error)[:70]
    errors = doc.get("errors", [])
    if errors:
        return f"{len(errors)} errors: " + str(errors[0].get("rule") or errors[0].get("message"))[:60]
    warnings = len(doc.get("warnings", []))
    return ("ok" if not warnings else f"{warnings} warn") + loads


def names_of_index(folder):
    for path in glob.glob(folder + "/model.safetensors.index.json*"):
        with (gzip.open if path.endswith(".gz") else open)(path, "rt") as file:
            return set(json.load(file)["weight_map"])
    return None


def names_of_files(folder):
    names = set()
    for path in glob.glob(folder + "/*.safetensors"):
        with open(path, "rb") as file:
            names |= set(json.loads(file.read(int.from_bytes(file.read(8), "little"))))
    return names - {"__metadata__"}


def weights(names):
    """Names without scales, packed weights under the plain name."""
    kept = {PACKED.sub(lambda m: "" if m[0] == "_blocks" else ".weight", n) for n in names if not PARTS.search(n)}
    return kept


def against_index(folder, made):
    published = names_of_index(folder)
    if published is None:
        return ""
    published, made = weights(published), weights(names_of_files(made))
    return f"-{len(published - made)} +{len(made - published)}"


def row(folder, work):
    config = json.load(open(folder + "/config.json"))
    quantized = config.get("quantization_config") or config.get("text_config", {}).get("quantization_config") or {}
    how = str(quantized.get("quant_method") or quantized.get("quant_algo") or "")
    model, cells = folder, [os.path.basename(folder), str(config.get("model_type")), how]
    if not glob.glob(folder + "/*.safetensors"):
        model = work + "/model"
        code, doc, _ = run("synth", model, "--config", folder + "/config.json", "--like", "headers", "--json")
        if code:
            family = "no family" if "is of no family" in json.dumps(doc) else verdict(code, doc)
            return cells + [family] + [""] * (3 + len(SCHEMES))
        with open(model + "/tokenizer.json", "w") as file:
            json.dump({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}, file)
    code, doc, _ = run("inspect", model, "--json")
    cells += [str(doc.get("tensors", verdict(code, doc))), f"{doc.get('parameters', 0) / 1e9:.2f}"]
    cells += [against_index(folder, model), verdict(*run("check", model, "--no-hashes", "--json")[:2])]
    for scheme in SCHEMES:
        cells.append(verdict(*run("convert", model, work + "/out", "--to", scheme, "--dry-run",
                                  "--assume-disk", "100TB", "--json")[:2]))
    return cells


def tried(config):
    work = tempfile.mkdtemp(prefix="ingot-real-", dir=os.environ.get("TMPDIR", "/tmp"))
    try:
        return row(os.path.dirname(config), work)
    finally:
        shutil.rmtree(work)


def show(cells):
    print("  ".join(c.ljust(w) for c, w in zip(cells, WIDTHS)).rstrip(), flush=True)


WIDTHS = (44, 16, 18, 8, 8, 10, 30, 16, 16, 16)
show(["release", "model_type", "quantized", "tensors", "B param.", "index", "check"] + ["to " + s for s in SCHEMES])
table = []
with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
    for cells in pool.map(tried, sorted(glob.glob(ROOT + "/*/config.json"), key=str.lower)):
        table.append(cells)
        show(cells)
known = [r for r in table if r[3].isdigit()]
print(f"\n{len(table)} releases: {len(known)} of a known family, {sum(r[6] == 'ok' for r in known)} without a finding")
sys.exit(worst)
PYTHON
