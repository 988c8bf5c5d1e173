#!/usr/bin/env python3
"""No line of any command is wider than its terminal, but for commands to copy, paths and data; no word is broken; without
a terminal nothing is wrapped. screens.py INGOT EXAMPLE GOLDEN DOCS"""
import fcntl
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time

ingot, example, golden, docs = map(os.path.abspath, sys.argv[1:])
END = b"\x1e"  # no command prints it
programs = {"hf", "ingot", "jq", "mpirun", "python", "source", "trtllm-serve", "vllm"}


def screen(columns, *arguments, interrupt=None):
    """The lines that a command leaves on a terminal of so many columns. `interrupt`: Ctrl-C once this file is there."""
    fd, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    pid = os.fork()
    if pid == 0:
        os.login_tty(terminal)
        os.environ.update(TERM="xterm", NO_COLOR="1")
        os.environ.pop("PAGER", None)
        os.execv(ingot, ["ingot", *arguments])
    if interrupt:
        deadline = time.monotonic() + 60
        while not os.path.exists(interrupt) and time.monotonic() < deadline:
            time.sleep(0.0005)
        os.write(fd, b"\x03")
    # The terminal stays open here: bytes that were not read when its last user closes it may be lost.
    shown, is_running = b"", True
    while not shown.endswith(END):
        if is_running and os.waitpid(pid, os.WNOHANG)[0]:
            is_running = False
            os.write(terminal, END)
        if select.select([fd], [], [], 0.01)[0]:
            shown += os.read(fd, 65536)
    os.close(terminal)
    os.close(fd)
    shown = shown.removesuffix(END)
    # A bar erases itself.
    return [re.sub(r"^.*\x1b\[K", "", line.split("\r")[-1]) for line in shown.decode().split("\r\n")]


def may_be_wide(line, columns):
    """A command to copy, or a word that does not fit behind its label: a path, or a name."""
    words = line.split()
    label = line[:len(line) - len(line.lstrip())] if len(words) == 1 else line[:line.rfind(words[-1])]
    is_long_word = len(label) <= columns / 2 and len(words[-1]) > columns - max(len(label), 20)
    return os.path.basename(words[0]) in programs or is_long_word


def require_fit(columns, lines, arguments, page=""):
    for line in lines:
        if len(line) > columns and not may_be_wide(line, columns) and line.strip() not in page:
            raise SystemExit(f"{len(line)} columns of {columns}: ingot {' '.join(arguments)}\n{line}")


def words_of(text):
    # Not names of a table: they may lose their middle. Times and rates are of one run.
    words = (word.rstrip(",;:") for word in text.split() if set(word) != {"-"})
    return {word for word in words if len(word) > 8 and "..." not in word and not re.search(r"\d[.,]?\d", word)}


def check(*arguments, widths=(60, 80), page=""):
    plain = subprocess.run([ingot, *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    known = words_of(plain.stdout + plain.stderr)
    for columns in widths:
        lines = screen(columns, *arguments)
        require_fit(columns, lines, arguments, page)
        new = words_of(" ".join(lines)) - known
        assert not new, f"broken in {columns} columns: ingot {' '.join(arguments)}: {new}"


os.chdir(work := tempfile.mkdtemp())
try:
    with open("text.txt", "w") as file:
        file.write("The capital of France is Paris. " * 8)
    run = dict(check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for arguments in (["nv", "--to", "nvfp4"], ["int8", "--to", "int8"], ["ranks", "--tp", "2", "--ep", "4", "--tp-fit", "retile"]):
        subprocess.run([ingot, "convert", example, *arguments], **run)
    # A repair links weights, and renames the links: other tests convert the example meanwhile, and take it for a write.
    shutil.copytree(example, "own")
    long_name = "a/" + "folder-of-a-model-with-a-long-name/" * 3

    # Jobs that write, once a width.
    for columns in (60, 80, 120):
        for command in (["convert", example, "OUT", "--to", "nvfp4", "--progress", "always"],
                        ["convert", example, "OUT", "--tp", "2", "--ep", "4", "--tp-fit", "retile", "--verify", "weights"],
                        ["merge", "ranks", "OUT"],
                        ["repair", "own", "OUT"],
                        ["calibrate", example, "--text", "text.txt", "--out", "OUT"],
                        ["balance", example, "--text", "text.txt", "--ep", "4", "--out", "OUT"],
                        ["synth", "OUT", "--family", "qwen3_moe", "--like", "tiny"]):
            arguments = [word.replace("OUT", f"{command[0]}-{len(command)}-{columns}") for word in command]
            require_fit(columns, screen(columns, *arguments), arguments)

    # Questions, whose words are those without a terminal.
    models = [example, "nv", "ranks"] + [f"{golden}/{name}" for name in (
        "families/deepseek_v4_base", "families/qwen3_vl_moe_fp8", "other_tools/quark_mxfp4", "int4/gptq_v2",
        "arch/qwen3_moe/checkpoint")]
    for model in models:
        check("inspect", model)
        check("inspect", model, "--gpu", "h100", "--count", "8")
        check("check", model)
        for engine in ("vllm", "sglang", "transformers"):
            check("check", model, "--engine", engine, "--modules")
    # A plan has rates, which are of one run.
    for columns in (60, 80, 120):
        for model in (example, models[3]):
            arguments = ["convert", model, "nowhere", "--to", "nvfp4", "--dry-run"]
            require_fit(columns, screen(columns, *arguments), arguments)
    tensor = "model.layers.1.mlp.experts.1.up_proj.weight"
    for arguments in (["verify", example, "nv"], ["verify", example, "ranks"], ["verify", example, "int8"],
                      ["verify", example, "nv", "--text", "text.txt"], ["compare", "int8", "nv", "--reference", example],
                      ["compare", example, "nv"], ["convert", example, "nowhere", "--to", "int8", "--explain", tensor],
                      ["generate", example, "--prompt", "The", "--greedy", "--max-new-tokens", "3"],
                      ["merge", "ranks", "nowhere", "--dry-run"], ["join", "nv"], ["inspect", example, "--tensors", "*.down_proj.*"]):
        # They tell what took their time, which is of one run.
        require_fit(80, screen(80, *arguments), arguments)
    # Faults, and names that fill lines.
    for arguments in (["check", "nv", "--engine", "vllm,sglang"], ["convert", example, "x", "--to", "nvfp4x"], ["inspect", long_name],
                      ["convert", example, "x", "--rule", "attention=bf16"], ["generate", example], ["verify", example, long_name],
                      ["convert", example, "nv", "--to", "bf16"], ["convert", long_name, "x"], ["help", "nothing-of-this-name"]):
        check(*arguments)
    listed = subprocess.run([ingot, "list", "nothing"], capture_output=True, text=True).stderr
    for table in re.search(r"tables ([a-z, ]+)", listed)[1].split(", "):
        check("list", table)
    for command in re.findall(r"^  ([a-z]+) ", subprocess.run([ingot, "help"], capture_output=True, text=True).stdout, re.M):
        page = f"{docs}/{command}.md"
        check("help", command, page=open(page).read() if os.path.exists(page) else "", widths=(60, 80, 120))
        if not os.path.exists(page):
            check(command, "-h")
    for arguments in (["help"], ["help", "ct.ignore"], ["--help"], ["--version"]):
        check(*arguments)

    # Data stay as they are.
    for arguments in (["inspect", example, "--json"], ["list", "recipes", "nvfp4-attention-fp8", "--yaml"], ["completions", "bash"]):
        plain = subprocess.run([ingot, *arguments], capture_output=True, text=True, check=True).stdout
        assert screen(60, *arguments) == plain.split("\n"), arguments

    # After Ctrl-C the whole command that goes on is on one line, as a shell reads it.
    subprocess.run([ingot, "synth", "large", "--family", "qwen3_moe", "--like", "layer", "--layers", "2", "--experts", "8"], **run)
    for command in (["convert", "large", "stopped here", "--to", "nvfp4", "--rule", "role:router=keep", "--threads", "1"],
                    ["convert", "large", "cut", "--tp", "2", "--ep", "4", "--log", "a log.txt", "--force"]):
        lines = screen(80, *command, interrupt=f"{command[2]}/.ingot-partial/journal.jsonl")
        quoted = [f"'{word}'" if " " in word else word for word in command]
        assert f"  ingot {' '.join(quoted)} --resume" in lines, "\n".join(lines)
        again = lines[lines.index("continue with") + 1]
        subprocess.run(["bash", "-c", again.replace("ingot", f"'{ingot}'", 1)], **run)
        subprocess.run([ingot, "check", command[2]], **run) if command[2] != "cut" else None
finally:
    subprocess.run(["rm", "-rf", work])
print("all claims hold")
