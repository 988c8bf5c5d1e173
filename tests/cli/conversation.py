#!/usr/bin/env python3
"""usage: conversation.py INGOT CHECKPOINT

A conversation at a terminal: editing keys, history, /clear, Ctrl-C that stops an answer and not the program, /exit;
and one with a model whose files mean harm.
"""
import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time


class Terminal:
    def __init__(self, command):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "xterm"
            os.environ["LC_ALL"] = "C.UTF-8"
            os.execvp(command[0], command)
        self.seen = ""

    def send(self, text):
        os.write(self.fd, text.encode())

    def wait_for(self, pattern, seconds=600):
        """Reads until what was not yet looked at matches; returns it."""
        end = time.time() + seconds
        while not re.search(pattern, self.seen):
            ready, _, _ = select.select([self.fd], [], [], max(0.0, end - time.time()))
            if not ready:
                sys.exit(f"FAILED: no {pattern!r} in {self.seen[-400:]!r}")
            try:
                self.seen += os.read(self.fd, 4096).decode(errors="replace")
            except OSError:
                sys.exit(f"FAILED: the program ended before {pattern!r}: {self.seen[-400:]!r}")
        seen, self.seen = self.seen, ""
        return seen

    def exit_status(self):
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status)


def edited_copy(checkpoint, folder, edit):
    """A copy of the checkpoint whose tokenizer.json and chat template `edit` has changed."""
    shutil.copytree(checkpoint, folder)
    with open(os.path.join(folder, "tokenizer.json")) as file:
        tokenizer = json.load(file)
    template = edit(tokenizer)
    with open(os.path.join(folder, "tokenizer.json"), "w") as file:
        json.dump(tokenizer, file)
    if template is not None:
        with open(os.path.join(folder, "chat_template.jinja"), "w") as file:
            file.write(template)
    return folder


def talk_to_a_hostile_model(ingot, checkpoint, work):
    """Its text cannot control the terminal, and is unchanged in a pipe; Ctrl-C ends a turn that it makes long."""
    escape, csi, override = "\x1b]52;c;ZXZpbA==\x07", "\u009b2J", "\u202e"

    def writes(tokenizer):
        tokenizer["decoder"] = {"type": "Replace", "pattern": {"Regex": ".+"}, "content": escape + csi + override}

    model = edited_copy(checkpoint, os.path.join(work, "writes"), writes)
    command = [ingot, "generate", model, "--prompt", "hi", "--max-new-tokens", "2", "--greedy"]
    terminal = Terminal(command)
    seen = terminal.wait_for(r"peak memory")
    if escape in seen or csi in seen or override in seen or "\\x1b]52;c" not in seen:
        sys.exit(f"FAILED: the model wrote to the terminal: {seen!r}")
    terminal.exit_status()
    piped = subprocess.run(command, capture_output=True, check=True).stdout.decode()
    if escape + csi + override not in piped:
        sys.exit(f"FAILED: text in a pipe is not what the model wrote: {piped!r}")

    def draws_out(tokenizer):
        tokenizer["pre_tokenizer"] = {"type": "Split", "pattern": {"Regex": "a(?=a*c)|a"}, "behavior": "Isolated",
                                      "invert": False}
        return "{{ 'a' * 2000000 }}"

    model = edited_copy(checkpoint, os.path.join(work, "draws_out"), draws_out)
    terminal = Terminal([ingot, "generate", model, "--interactive", "--greedy"])
    terminal.wait_for(r"Ctrl-C stops an answer")
    # A signal before the line was read drops the line.
    for _ in range(10):
        terminal.send("hi\r")
        time.sleep(0.5)
        terminal.send("\x03")
        if "stopped while the turn was read" in terminal.wait_for(r"> $"):
            break
    else:
        sys.exit("FAILED: no turn ended at Ctrl-C")
    terminal.send("/exit\r")
    if terminal.exit_status() != 0:
        sys.exit("FAILED: Ctrl-C ended the program")


def main():
    ingot, checkpoint = sys.argv[1:3]
    with tempfile.TemporaryDirectory(prefix="ingot-conversation-") as work:
        talk_to_a_hostile_model(ingot, checkpoint, work)
    terminal = Terminal([ingot, "generate", checkpoint, "--interactive", "--greedy", "--profile", "f32"])
    terminal.wait_for(r"Ctrl-C stops an answer")
    # Editing: two characters too many, taken back.
    terminal.send("What is 2 + 2?xx\x7f\x7f\r")
    terminal.wait_for(r"2 \+ 2 = 4\.")
    # History: the arrow up gives the line again.
    terminal.send("\x1b[A\r")
    terminal.wait_for(r"2 \+ 2 = 4\.")
    terminal.send("/clear\r")
    # Ctrl-C in the middle of a story; on a busy machine it may come late, not always.
    for _ in range(10):
        terminal.send("Tell me a story about a fox and a kite.\r")
        terminal.wait_for(r"There was once")
        terminal.send("\x03")
        if "went home" not in terminal.wait_for(r"> $"):
            break
        terminal.send("/clear\r")
    else:
        sys.exit("FAILED: every story was told to its end")
    # Ctrl-C at the prompt drops the line.
    terminal.send("never mind\x03")
    terminal.send("/clear\r")
    terminal.send("中国的首都是哪里？\r")
    terminal.wait_for("中国的首都是北京。")
    terminal.send("/exit\r")
    status = terminal.exit_status()
    if status != 0:
        sys.exit(f"FAILED: exit status {status}")
    print("all claims hold")


if __name__ == "__main__":
    main()
