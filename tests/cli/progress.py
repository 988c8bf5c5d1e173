#!/usr/bin/env python3
"""A terminal: bars and tables that fit it, a line on SIGUSR1, a line for each phase. progress.py INGOT"""
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time

ingot = sys.argv[1]


def on_terminal(columns, *arguments, ask=False):
    """The output of a command on a terminal of so many columns, and its stdout separately."""
    out, inside = os.pipe()
    pid, fd = pty.fork()
    if pid == 0:
        fcntl.ioctl(2, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        os.environ["TERM"] = "xterm"
        os.dup2(inside, 1)
        os.execl(ingot, "ingot", *arguments)
    os.close(inside)
    shown = b""
    asked = not ask
    while True:
        try:
            piece = os.read(fd, 65536)
        except OSError:
            break
        if not piece:
            break
        shown += piece
        if not asked and b"converting" in shown:
            asked = True
            os.kill(pid, signal.SIGUSR1)
    result = os.read(out, 65536).decode()
    assert os.waitpid(pid, 0)[1] == 0, shown.decode()
    return shown.decode(), result


def screen(columns, *arguments):
    """The lines of a command whose stdout is a terminal of so many columns."""
    pid, fd = pty.fork()
    if pid == 0:
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        os.environ.update(TERM="xterm", NO_COLOR="1")
        os.execl(ingot, "ingot", *arguments)
    shown = b""
    try:
        while piece := os.read(fd, 65536):
            shown += piece
    except OSError:
        pass
    os.waitpid(pid, 0)
    return shown.decode().split("\r\n")


def drawn(shown):
    """The lines that stood on the terminal, one after the other."""
    return [line for line in re.split(r"\r\n|\r|\x1b\[K", shown) if line]


def wait_until(word, process):
    """Until SIGUSR1 is caught ("SigCgt:") or passed over ("SigIgn:")."""
    while process.poll() is None:
        mask = next(line for line in open(f"/proc/{process.pid}/status") if line.startswith(word))
        if int(mask.split()[1], 16) >> (signal.SIGUSR1 - 1) & 1:
            return
        time.sleep(0.001)


with tempfile.TemporaryDirectory() as work:
    source = work + "/in"
    subprocess.run([ingot, "synth", source, "--family", "deepseek_v3", "--like", "layer", "--layers", "3", "--dense-layers", "1",
                    "--experts", "8", "--mtp-layers", "0", "--hidden", "2048", "--moe-intermediate", "1024", "--intermediate",
                    "4096", "--heads", "32", "--vocab", "8192"], check=True, stdout=subprocess.DEVNULL)
    for columns in (30, 80, 120):
        out = f"{work}/out{columns}"
        shown, result = on_terminal(columns, "convert", source, out, "--to", "bf16", "--progress", "always", "--read-back",
                                    "--threads", "1", ask=True)
        lines = drawn(shown)
        table = lines.index(next(line for line in lines if line.startswith("  phase")))
        bars = lines[:table]
        # The line that was asked for has all facts, whatever the width.
        assert sum(len(line) >= columns for line in bars) <= 1, max(bars, key=len)
        if columns == 30:
            assert not any("[" in line for line in bars), bars
        else:
            # The bar takes the room that the text leaves, and its place does not change.
            widths = {line.index("]") for line in bars if line.startswith("[")}
            assert len(widths) == 1 and widths.pop() >= 16, bars
        assert any("%" in line and not line.startswith("[") for line in bars), "SIGUSR1 was not answered"
        phases = [line.split("  ")[1] for line in lines[table + 1:]]
        assert phases[0] == "converting" and "reading back" in phases, phases
        assert result.count("\n") + len(phases) + 1 <= 40
    assert max(line.index("]") for line in drawn(shown) if line.startswith("[")) > 40, "the bar does not grow"

    # Where nothing is shown a line comes all the same when it is asked for; other commands do not die of it.
    for command in (["convert", source, work + "/never", "--to", "bf16", "--progress", "never", "--threads", "1"],
                    ["verify", source, work + "/never", "--quiet", "--threads", "1"]):
        process = subprocess.Popen([ingot, *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        wait_until("SigCgt:", process)
        process.send_signal(signal.SIGUSR1)
        said = process.communicate()[1]
        assert process.returncode == 0, said
        assert re.fullmatch(r"(converting|headers and structure|comparing weights)[^\n]*\n", said), said
    process = subprocess.Popen([ingot, "check", source], stdout=subprocess.DEVNULL)
    wait_until("SigIgn:", process)
    while process.poll() is None:
        process.send_signal(signal.SIGUSR1)
        time.sleep(0.01)
    assert process.returncode == 0, process.returncode
    # No terminal, less than half a minute: nothing between the start and the lines of the phases.
    quick = subprocess.run([ingot, "convert", source, work + "/lines", "--to", "bf16"], capture_output=True, text=True, check=True)
    assert "%  " not in quick.stderr and "\033" not in quick.stderr, quick.stderr
    # The last line of a conversion and of a comparison names the limit.
    limit = r"limited by (reading|computing|writing|waiting|other programs) \(\d+% of the threads' time\)(, next by [a-z ]+\(\d+%\))*"
    assert re.fullmatch(limit, quick.stdout.splitlines()[-1]), quick.stdout
    compared = subprocess.run([ingot, "verify", source, work + "/lines", "--progress", "always"], capture_output=True, text=True, check=True)
    assert re.fullmatch(r"[a-z ]+: " + limit, compared.stderr.splitlines()[-1]), compared.stderr

# Tables fit the terminal, and elsewhere a row is a line.
for columns in (80, 120):
    lines = screen(columns, "list", "engines")
    assert max(map(len, lines)) <= columns, max(lines, key=len)
    assert any("vLLM-Ascend" in line for line in lines)
plain = subprocess.run([ingot, "list", "engines", "--json"], capture_output=True, text=True, check=True).stdout
rows = json.loads(plain)["engines"]
text = subprocess.run([ingot, "list", "engines"], capture_output=True, text=True, check=True).stdout
assert len(text.splitlines()) == len(rows) + 1
print("all claims hold")
