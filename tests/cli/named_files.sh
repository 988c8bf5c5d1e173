#!/usr/bin/env bash
# named_files.sh INGOT SMALL: files that options name replace only earlier ones of their form, and never a file of a model.
source "$(dirname "$0")/expect.sh"
ingot=$1 small=$2
cd "$work" || exit 1
cp -r "$small" model && cp -r model copy && mkdir out
quiet=(--progress never)
state() { find model copy out -type f -exec sha256sum {} + | sort; }
"$ingot" convert model copied --to bf16 "${quiet[@]}" >/dev/null 2>&1 || fail "convert"
weights=$(basename "$(find model -name '*.safetensors' | head -1)")

# A file of a model, a file of the user's, and a new file in the folder of a model.
echo mine >notes
for file in "model/$weights" model/config.json model/new notes; do
  before=$(state)
  for command in "verify model copied --levels structure --html" "verify model copied --levels structure --markdown" \
    "compare copied copied --reference model --levels structure --html" "compare copied copied --markdown" \
    "balance model --ep 2 --loads loads.json --out map.json --html" "balance model --ep 2 --loads loads.json --markdown x --out" \
    "convert model out --to bf16 --log" "repair model out --log" \
    "generate model --tokens 0,5 --max-new-tokens 1 --greedy --log" "calibrate model --text notes --out" \
    "family learn model --without deepseek_v32 --python none --out"; do
    # shellcheck disable=SC2086
    judge 2 "$file" "$ingot" $command "$file"
  done
  [ "$(state)" = "$before" ] && [ "$(cat notes)" = mine ] || fail "$file or a model was changed"
done
mkdir man && echo mine >man/ingot-verify.1
judge 2 "man/ingot-verify.1" "$ingot" help --man man
[ "$(ls man)" = ingot-verify.1 ] || fail "some manual pages were written: $(ls man)"

# Earlier ones are replaced, and lines are added to a log.
for turn in 1 2; do
  judge 0 "" "$ingot" verify model copied --levels structure --html page.html --markdown card.md "${quiet[@]}"
  judge 0 "" "$ingot" compare copied copied --reference model --html page.html --markdown card.md "${quiet[@]}"
  judge 0 "" "$ingot" generate model --tokens 0,5 --max-new-tokens 1 --greedy --log steps
  judge 0 "" "$ingot" convert model "new$turn" --to bf16 --log log "${quiet[@]}"
  judge 0 "" "$ingot" help --man pages
done
[ "$(grep -c published log)" -eq 2 ] || fail "the log has not both jobs"
judge 2 "lies in the output" "$ingot" convert model fresh --to bf16 --log fresh/log
[ ! -e fresh ] || fail "a refused log has made the output"

# Two outputs of one name are refused before any work, whatever the way to it; a device is no file.
rm -f page.html map.json && ln -s . way
before=$(state)
for command in "verify model copied --levels structure --html page.html --markdown way/page.html" \
  "compare copied copied --html page.html --markdown page.html" "verify model --html page.html --markdown ./page.html" \
  "balance model --ep 2 --loads loads.json --out map.json --html map.json" \
  "balance model --ep 2 --loads loads.json --out x --html page.html --markdown page.html"; do
  # shellcheck disable=SC2086
  judge 2 "both write this file" "$ingot" $command "${quiet[@]}"
done
judge 0 "" "$ingot" verify model copied --levels structure --html /dev/null --markdown /dev/null "${quiet[@]}"
[ "$(state)" = "$before" ] && [ ! -e page.html ] && [ ! -e map.json ] && [ ! -e fresh ] || fail "a refused command wrote a file"
finish
