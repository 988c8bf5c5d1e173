#!/usr/bin/env bash
# SIGINT leaves a resumable directory and says how to go on; the program dies of the signal.
source "$(dirname "$0")/expect.sh"
ingot=$1 example=$2
"$ingot" synth "$work/in" --family deepseek_v3 --like layer --layers 3 --dense-layers 1 --experts 16 --mtp-layers 0 \
  --hidden 1024 --moe-intermediate 512 --intermediate 2048 --heads 16 --vocab 4096 >/dev/null || fail "synth"
"$ingot" convert "$work/in" "$work/whole" --to bf16 --progress never >/dev/null || fail "convert"
interrupted=0
for lines in 1 3; do
  rm -rf "$work/out"
  # A background job of a script ignores SIGINT unless it is told otherwise.
  : >"$work/log"
  python3 - "$ingot" "$work" "$lines" <<'P'
import signal, subprocess, sys, time
ingot, work, lines = sys.argv[1:]
p = subprocess.Popen([ingot, "convert", work + "/in", work + "/out", "--to", "bf16", "--progress", "never", "--log", work + "/log"],
                     stdout=subprocess.DEVNULL, stderr=open(work + "/stderr", "w"),
                     preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
# The job has begun with the first line of its log, and tells there what is durable.
while p.poll() is None and open(work + "/log").read().count("\n") < int(lines):
    time.sleep(0.001)
p.send_signal(signal.SIGINT)
open(work + "/status", "w").write(str(p.wait()))
P
  status=$(cat "$work/status")
  if [ "$status" -eq -2 ]; then
    expect_unpublished "$work/out"
    # A signal before the handler is set kills the program at once, before it has written anything.
    if [ -e "$work/out/.ingot-partial" ] || [ -s "$work/stderr" ]; then
      interrupted=$((interrupted + 1))
      grep -q -- "--resume" "$work/stderr" || fail "no word of --resume: $(cat "$work/stderr")"
    fi
  elif [ "$status" -ne 0 ]; then
    fail "exit status $status: $(cat "$work/stderr")"
  fi
  expect 0 "" "$ingot" convert "$work/in" "$work/out" --to bf16 --progress never --resume --log "$work/log"
  diff -r "$work/whole" "$work/out" || fail "resumed output differs"
done
[ "$interrupted" -gt 0 ] || fail "no run was interrupted"
grep -q published "$work/log" || fail "the log does not tell the end"

# Commands that only read a model have nothing to resume, and leave nothing. The work takes half a minute; the signal
# comes as soon as it is caught.
python3 -c "print('There was once a small fox, and his name was Sam. ' * 8000)" >"$work/text.txt"
interrupt() {  # interrupt SIGNAL COMMAND...: as soon as the program catches signals
  python3 - "$work" "$@" <<'P'
import signal, subprocess, sys, time
work, name, *command = sys.argv[1:]
number = signal.Signals[name]
p = subprocess.Popen(command, stdout=open(work + "/stdout", "w"), stderr=open(work + "/stderr", "w"),
                     preexec_fn=lambda: [signal.signal(n, signal.SIG_DFL) for n in (signal.SIGINT, signal.SIGHUP)])
def catches():
    mask = next(line for line in open(f"/proc/{p.pid}/status") if line.startswith("SigCgt:"))
    return int(mask.split()[1], 16) >> (number - 1) & 1
while p.poll() is None and not catches():
    time.sleep(0.001)
p.send_signal(number)
status = p.wait()
assert status == -number, f"status {status} instead of {-number}: {' '.join(command)}"
P
}
for line in "SIGINT calibrate $example --text $work/text.txt --out $work/statistics.safetensors" \
            "SIGTERM balance $example --text $work/text.txt --ep 2 --out $work/map.json" \
            "SIGHUP verify $work/in $work/out" \
            "SIGINT verify $work/in $work/out" \
            "SIGTERM verify $example $example --levels layers --text $work/text.txt"; do
  read -r name command <<<"$line"
  # shellcheck disable=SC2086
  interrupt "$name" "$ingot" $command || fail "$line: $(cat "$work/stderr")"
  grep -q "stopped" "$work/stderr" || fail "$line says: $(cat "$work/stderr")"
  grep -q -- "--resume" "$work/stderr" && fail "$line advises --resume"
  grep -qE "PASS|FAIL" "$work/stdout" && fail "$line gives a verdict"
done
[ -z "$(ls "$work" | grep -E 'statistics|map')" ] || fail "an interrupted calibration left a file"
finish
