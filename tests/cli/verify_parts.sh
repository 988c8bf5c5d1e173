#!/usr/bin/env bash
# verify_parts.sh INGOT EXAMPLE: parts of a verification join to the very report of an undivided one.
source "$(dirname "$0")/expect.sh"
ingot=$1 example=$2
quiet() { "$@" >"$work/stdout" 2>"$work/stderr" || fail "$*: $(head -c 600 "$work/stderr")"; }

# verify_parts N OUTPUT OPTIONS...: reports in $work/part0 ... and in $reports.
verify_parts() {
  local n=$1 output=$2 i
  shift 2
  reports=()
  for ((i = 0; i < n; i++)); do
    "$ingot" verify "$example" "$output" "$@" --part "$i/$n" --json --progress never >"$work/part$i" 2>"$work/stderr" ||
      fail "part $i/$n of $output: $(head -c 400 "$work/stderr")"
    reports+=("$work/part$i")
  done
}

# joins_to STATUS OUTPUT OPTIONS...: what three and one parts join to is the report of one run, which ends so.
joins_to() {
  local status=$1 output=$2 n
  shift 2
  "$ingot" verify "$example" "$output" "$@" --json --progress never >"$work/whole.json" 2>/dev/null
  [ $? -eq "$status" ] || fail "the whole verification of $output ended otherwise than with $status"
  for n in 3 1; do
    verify_parts $n "$output" "$@"
    "$ingot" verify --join "${reports[@]}" --json --progress never >"$work/joined.json" 2>"$work/stderr"
    [ $? -eq "$status" ] || fail "$n parts of $output joined otherwise than with $status: $(head -c 400 "$work/stderr")"
    cmp "$work/whole.json" "$work/joined.json" >&2 || fail "$n parts of $output join to another report"
  done
}

quiet "$ingot" convert "$example" "$work/nvfp4" --to nvfp4 --progress never
quiet "$ingot" convert "$example" "$work/ranks" --to int8 --tp 2 --ep 2 --tp-fit retile --progress never
joins_to 0 "$work/nvfp4"
joins_to 0 "$work/ranks"
joins_to 1 "$work/nvfp4" --require 'weights.relative_error<=0' --sample 0.5
# Faults: a byte that changed, found by its hash and by its value; a weight under the scale of another.
cp -r "$work/nvfp4" "$work/flipped"
first=$(find "$work/flipped" -name '*.safetensors' | sort | head -1)
printf '\377' | dd of="$first" bs=1 seek=$(($(stat -c %s "$first") - 70000)) conv=notrunc status=none
joins_to 1 "$work/flipped"

# Every part once, and all of one comparison.
verify_parts 3 "$work/nvfp4"
judge 0 "PASS" "$ingot" verify --join "$work/part2" "$work/part0" "$work/part1" --html "$work/page.html"
[ -s "$work/page.html" ] || fail "the join writes no page"
# Paths are those of the folder in which the parts were begun.
cd "$work" || exit 1
for i in 0 1; do quiet "$ingot" verify "$example" nvfp4 --part $i/2 --json && mv stdout near$i; done
cd / || exit 1
judge 0 "PASS" "$ingot" verify --join "$work/near0" "$work/near1"
(cd "$work" && judge 0 "PASS" "$ingot" verify "$example" nvfp4 --reports part0 --reports part1 --reports part2)
judge 2 "reports of 2 of 3 parts are missing: 1/3, 2/3" "$ingot" verify --join "$work/part0"
judge 2 "part 0/3, which another report is too" "$ingot" verify --join "$work/part0" "$work/part0" "$work/part1"
judge 2 "is no report of a part" "$ingot" verify --join "$work/whole.json"
judge 2 "of other checkpoints, options or versions" "$ingot" verify "$example" "$work/nvfp4" --reports "$work/part0" --reports "$work/part1" --reports "$work/part2" --sample 0.25
cp "$work/part1" "$work/old1"
verify_parts 3 "$work/ranks"
judge 2 "of other checkpoints, options or versions" "$ingot" verify --join "$work/part0" "$work/old1" "$work/part2"
verify_parts 2 "$work/ranks"
judge 2 "is one of 3 parts" "$ingot" verify --join "$work/part0" "$work/old1"
# Levels that cannot be divided, and reports that are refused.
judge 2 "levels structure and weights" "$ingot" verify "$example" "$work/nvfp4" --part 0/2 --levels layers
judge 2 "is not I/N" "$ingot" verify "$example" "$work/nvfp4" --part 2/2
judge 2 "belongs to the command of the parts" "$ingot" verify --join "$work/part0" "$work/part1" --levels weights
judge 2 "reports go with --join" "$ingot" verify "$example" "$work/nvfp4" "$work/part0"
for change in '["part"]["tensors"][0]=[9]' '["part"]["hashes"][0]="x"' '["part"]["index"]=7' '["part"]["settings"]=[3]' '["part"]={}'; do
  python3 -c "import json,sys; d=json.load(open(sys.argv[1])); d$change; json.dump(d, open(sys.argv[2], 'w'))" "$work/part0" "$work/hostile"
  judge 2 "hostile" "$ingot" verify --join "$work/hostile" "$work/part1"
done
python3 - "$work/part0" "$work/part1" "$work" <<'END'
import json, sys
for i in range(2):
    for name, value in [("force", True), ("html", sys.argv[3] + "/stolen.html"), ("json", True)]:
        report = json.load(open(sys.argv[1 + i]))
        report["part"]["settings"][name] = value
        json.dump(report, open(f"{sys.argv[3]}/{name}{i}", "w"))
END
judge 2 "option 'force' is none of" "$ingot" verify --join "$work/force0" "$work/force1"
judge 2 "html is no option of a comparison" "$ingot" verify --join "$work/html0" "$work/html1"
judge 2 "json is no option of a comparison" "$ingot" verify --join "$work/json0" "$work/json1"
[ ! -e "$work/stolen.html" ] || fail "a report made the join write a file"
head -c 1000 "$work/part0" >"$work/hostile"
judge 2 "hostile" "$ingot" verify --join "$work/hostile" "$work/part1"
finish
