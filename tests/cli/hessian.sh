#!/usr/bin/env bash
# Scales by the moments of inputs (--search hessian): each scheme is verified, threads and parts change no byte, and a
# search without moments says what it lacks.
source "$(dirname "$0")/expect.sh"
ingot=$1 example=$2

# Moments of inputs that have a share in common with all of their block, of every layer; and only their mean squares.
python3 - "$example" "$work" <<'P' || fail "no statistics"
import math, random, sys
from array import array
from container import read_checkpoint, write_file
example, work = sys.argv[1:]
random.seed(1)
moments, squares = {}, {}
for name, stored in read_checkpoint(example).items():
    if not name.endswith(".weight") or len(stored.shape) != 2 or stored.shape[1] % 16:
        continue
    module, cols = name.removesuffix(".weight"), stored.shape[1]
    sizes = [math.exp(random.gauss(0, 1)) for _ in range(cols)]
    both = array("f", (sizes[c] * sizes[c // 16 * 16 + i] * (1 if c % 16 == i else 0.4)
                       for c in range(cols) for i in range(16)))
    moments[module + ".input_block_moments"] = ("F32", (cols // 16, 16, 16), both.tobytes())
    squares[module + ".input_mean_square"] = ("F32", (cols,), array("f", (s * s for s in sizes)).tobytes())
write_file(work + "/moments.safetensors", moments)
write_file(work + "/squares.safetensors", squares)
P

for to in nvfp4 mxfp4 int4 int8 fp8; do
  expect 0 "PASS" "$ingot" convert "$example" "$work/$to" --to "$to" --search hessian --importance "$work/moments.safetensors" \
    --verify structure,weights --progress never
  grep -q "of them by moments" "$work/stderr" "$work/stdout" || fail "$to: the report does not say what is by moments"
  grep -q '"search": "hessian"' "$work/$to/ingot.json" || fail "$to: the manifest does not say the search"
  "$ingot" convert "$example" "$work/mse" --to "$to" --progress never >/dev/null 2>&1 || fail "$to by mse"
  cat "$work/$to"/*.safetensors | cmp -s - <(cat "$work"/mse/*.safetensors) && fail "$to: moments change nothing"
  rm -r "$work/mse"
done
"$ingot" convert "$example" "$work/one" --to nvfp4 --search hessian --importance "$work/moments.safetensors" --threads 1 \
  --mem-limit 200MB --progress never >/dev/null 2>&1 || fail "one thread"
for file in "$work"/one/*.safetensors; do
  cmp "$file" "$work/nvfp4/$(basename "$file")" || fail "one thread, other bytes"
done

expect 2 "needs --importance" "$ingot" convert "$example" "$work/none" --to nvfp4 --search hessian
expect 2 "has moments of the inputs of none" "$ingot" convert "$example" "$work/none" --to nvfp4 --search hessian \
  --importance "$work/squares.safetensors"
expect 2 "leave a choice" "$ingot" convert "$example" "$work/none" --to mxfp8 --search hessian --importance "$work/moments.safetensors"
finish
