#!/usr/bin/env bash
# Help while typing: suggestions, `ingot help`, completions in bash, manual pages.
source "$(dirname "$0")/expect.sh"
ingot=$1 example=$2

# One letter wrong: commands, options, values, schemes, roles, names of tensors, families, tables, pages.
expect 2 "did you mean convert?" "$ingot" covnert
expect 2 "did you mean --dry-run?" "$ingot" convert a b --dry-urn
expect 2 "did you mean nvfp4?" "$ingot" convert "$example" "$work/none" --to nvpf4
expect 2 "did you mean fp8-block?" "$ingot" convert "$example" "$work/none" --rule 'lm_head.weight=FP8-blokc'
expect 2 "did you mean expert-up?" "$ingot" convert "$example" "$work/none" --rule 'role:exprt-up=bf16'
expect 2 "did you mean model.norm.weight?" "$ingot" inspect "$example" model.nrom.weight
expect 2 "did you mean model.norm.weight?" "$ingot" convert "$example" "$work/none" --explain model.norm.wieght
expect 2 "did you mean model.layers.3.mlp.experts.7.up_proj.weight?" \
  "$ingot" convert "$example" "$work/none" --rule 'model.layers.3.mlp.expert.7.up_proj.weight=bf16'
expect 2 "did you mean deepseek_v32?" "$ingot" inspect "$example" --family deepsek_v32
expect 2 "did you mean deepseek_v3?" "$ingot" synth "$work/none" --family deepsek_v3
expect 2 "did you mean sha256?" "$ingot" convert "$example" "$work/none" --to bf16 --hash sha265
expect 2 "did you mean modelopt?" "$ingot" convert "$example" "$work/none" --to int8 --dialect modelop
expect 2 "did you mean dynamic?" "$ingot" convert "$example" "$work/none" --to int8 --activations dinamic
expect 2 "did you mean zero-scale?" "$ingot" convert "$example" "$work/none" --to bf16 --allow 'zero-scael=*'
printf 'to: int8\nruels: []\n' >"$work/recipe.yaml"
expect 2 "did you mean rules?" "$ingot" convert "$example" "$work/none" --recipe "$work/recipe.yaml"
expect 2 "did you mean retile?" "$ingot" convert "$example" "$work/none" --tp 2 --tp-fit retiel
expect 2 "did you mean 4over6?" "$ingot" convert "$example" "$work/none" --to nvfp4 --search 4over6x
expect 2 "did you mean weights?" "$ingot" verify "$example" "$example" --levels structure,weihgts
expect 2 "did you mean weights.cosine?" "$ingot" verify "$example" "$example" --require 'weights.cosin>=1'
expect 2 "did you mean native?" "$ingot" generate "$example" --prompt x --profile nativ
expect 2 "did you mean schemes?" "$ingot" list shcemes
expect 2 "did you mean formats?" "$ingot" help fromats
"$ingot" convert "$example" "$work/none" --to zzzzzz 2>&1 | grep -q "did you mean" && fail "a suggestion for zzzzzz"
long=$(head -c 100000 /dev/zero | tr '\0' c)
expect 2 "no command" "$ingot" "$long"
expect 2 "" "$ingot" convert a b --to "$long"

# Help: of a command in any case, and pages.
"$ingot" convert --help >"$work/wanted"
for word in convert CONVERT Convert; do "$ingot" help $word | cmp -s - "$work/wanted" || fail "help $word"; done
"$ingot" help >"$work/help" || fail "help"
for word in convert verify completions formats recipes verify.md; do grep -q "^  $word " "$work/help" || fail "no $word in ingot help"; done
for page in "$(dirname "$0")"/../../docs/*.md; do
  name=$(basename "$page")
  "$ingot" help "$name" >"$work/page" || fail "help $name"
  grep -qxF -- "$(head -1 "$page" | sed 's/^# //')" "$work/page" || fail "no title in help $name"
  [ "$(grep -c '^## ' "$page")" -le "$(grep -c '^[^ ]' "$work/page")" ] || fail "headings of $name"
  # Words of every section arrive; marks of Markdown do not.
  grep -qF '](' "$work/page" && fail "marks of links in help $name"
done
expect 0 "Formats" "$ingot" help FORMATS
# On a terminal tables, paragraphs and options stay within its columns; code and examples may be wider.
python3 - "$ingot" <<'P' || fail "the width of a page"
import fcntl, os, pty, struct, sys, termios
def lines_of(columns, *words):
    pid, fd = pty.fork()
    if pid == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        os.environ["NO_COLOR"] = "1"
        os.environ["TERM"] = "xterm"
        os.environ.pop("PAGER", None)
        os.execl(sys.argv[1], "ingot", *words)
    text = b""
    while True:
        try:
            piece = os.read(fd, 65536)
        except OSError:
            break
        if not piece:
            break
        text += piece
    assert os.waitpid(pid, 0)[1] == 0
    return text.decode().replace("\r", "").split("Examples:")[0].split("\n")
for columns in (80, 120):
    for words in (["help", "engines"], ["help"], ["convert", "--help"], ["--help"]):
        filled = [line for line in lines_of(columns, *words) if not line.startswith("    ") or line.startswith(" " * 19)]
        assert max(map(len, filled)) <= columns, max(filled, key=len)
        assert max(map(len, filled)) > 65, words
P

# On a terminal pages go through PAGER, and what it prints is seen; elsewhere they do not.
python3 - "$ingot" "$work" <<'P' || fail "PAGER"
import os, pty, subprocess, sys
environment = {**os.environ, "PAGER": f"tee '{sys.argv[2]}/paged' | head -1", "TERM": "xterm", "NO_COLOR": "1"}
def seen(words, environment):
    pid, fd = pty.fork()
    if pid == 0:
        os.execve(sys.argv[1], ["ingot", *words], environment)
    text = b""
    try:
        while piece := os.read(fd, 65536):
            text += piece
    except OSError:
        pass
    assert os.waitpid(pid, 0)[1] == 0, words
    return text
for words, first in ((["help", "engines"], b"Engines"), (["list", "schemes"], b"  name")):
    text = seen(words, environment)
    assert text.startswith(first) and text.count(b"\n") == 1, text[:200]
    assert len(open(sys.argv[2] + "/paged", "rb").read()) > 500, words
piped = subprocess.run([sys.argv[1], "help", "engines"], env=environment, stdout=subprocess.PIPE, check=True).stdout
assert piped.count(b"\n") > 50
# A program that is not there takes nothing away.
assert seen(["help", "engines"], {**environment, "PAGER": "/nonexistent"}).count(b"\n") > 50
P

# Completions, by bash itself.
"$ingot" completions bash >"$work/bash" || fail "completions bash"
mkdir -p "$work/place/folder" && : >"$work/place/file.yaml"
complete_words() {  # complete_words WORD...: what bash offers for the last
  (cd "$work/place" && bash -c 'source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _ingot; printf "%s\n" "${COMPREPLY[@]}"' "$work/bash" "$@")
}
offers() {  # offers WANTED WORD...: these, sorted, parted by blanks
  local wanted=$1 got
  shift
  got=$(complete_words "$@" | LC_ALL=C sort | paste -sd' ')
  [ "$got" = "$wanted" ] || fail "bash offers '$got' instead of '$wanted' for: $*"
}
bash -n "$work/bash" || fail "the syntax of bash completions"
offers "compare completions compose convert" ingot co
offers "--delta --dialect --dry-run" ingot convert --d
offers "nvfp4" ingot convert in out --to nv
offers "nvfp4" ingot convert in out --to = nv
offers "compressed-tensors" ingot convert --dialect = c
offers "structure,weights" ingot verify a b --levels = structure,w
offers "file.yaml folder" ingot convert in out --recipe = ""
offers "folder" ingot convert --to = nvfp4 f
offers "vllm vllm-ascend" ingot check d --engine v
offers "fp8 fp8-static" ingot inspect d --gpu h100 --kv-cache fp
offers "fp8 fp8-static" ingot generate d --kv-cache = fp
offers "h100 h200" ingot inspect d --gpu h
# Bash cuts words at each colon, and replaces what is behind the last.
offers "experts-up=" ingot convert in out --rule role : experts-u
offers "shared-experts=" ingot convert in out --rule = role : shared-experts
offers "role:experts-up=" ingot convert in out --rule "'role:experts-u"
offers "" ingot convert in out --rule "'role:experts-up='"
offers "weights.cosine" ingot verify a b --require weights.cos
offers "weights.cosine" ingot verify a b --require "'weights.cos"
offers "compressed-tensors" ingot convert --dialect c
offers "structure,weights" ingot verify a b --levels structure,w
offers "no yes" ingot convert --links ""
offers "folder" ingot convert ""
offers "file.yaml folder" ingot convert --recipe ""
offers "folder" ingot convert --to bf16 f
offers "schemes" ingot list sch
offers "bash" ingot completions b
offers "--thinking --threads" ingot generate d --th
offers "--no-thinking" ingot generate d --no
offers "" ingot convert --tp ""
for shell in zsh fish; do "$ingot" completions $shell >"$work/$shell" || fail "completions $shell"; done
for command in $(sed -n 's/^  \([a-z][a-z]*\)  .*/\1/p' "$work/help" | head -14); do
  # Every option of --help is offered.
  "$ingot" "$command" --help | grep -o '^  \(-h,\)\?--[a-z0-9-]*' | sed 's/.*--/--/' | sort -u >"$work/wanted"
  complete_words ingot "$command" -- | sort -u >"$work/got"
  comm -23 "$work/wanted" "$work/got" | grep -q . && fail "$command: bash does not offer $(comm -23 "$work/wanted" "$work/got" | paste -sd' ')"
  for shell in zsh fish; do grep -qw -- "$command" "$work/$shell" || fail "no $command for $shell"; done
done
if command -v zsh >/dev/null; then zsh -n "$work/zsh" || fail "the syntax of zsh completions"; fi
if command -v fish >/dev/null; then
  [ -z "$(fish -N -c "source $work/fish" 2>&1)" ] || fail "fish refuses its completions"
  [ "$(fish -N -c "source $work/fish; complete -C 'ingot convert a b --to=nv'" | cut -f1)" = "--to=nvfp4" ] || fail "fish offers no nvfp4"
fi
expect 2 "bash,zsh,fish" "$ingot" completions tcsh

# Manual pages: one for each command.
"$ingot" help --man "$work/man" >"$work/names" || fail "help --man"
n_commands=$(grep -c 'Command{' "$(dirname "$0")/../../cli/commands/commands.cc")
[ "$(wc -l <"$work/names")" -eq $((n_commands + 1)) ] || fail "pages: $(cat "$work/names")"
for page in "$work"/man/*.1; do
  grep -q '^\.SH NAME' "$page" || fail "no NAME in $page"
  if command -v groff >/dev/null; then
    [ -z "$(groff -man -ww -Tutf8 "$page" 2>&1 >/dev/null)" ] || fail "groff: $(groff -man -ww -Tutf8 "$page" 2>&1 >/dev/null | head -3)"
  fi
done
grep -q 'dry.-run' "$work/man/ingot-convert.1" || fail "no --dry-run in the page of convert"
finish
