#!/usr/bin/env python3
"""usage: conversation.py INGOT CHECKPOINT

A conversation at a terminal: editing keys, history, /clear, Ctrl-C that stops an answer and not the program, /exit.
"""
import os
import pty
import re
import select
import sys
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


def main():
    ingot, checkpoint = sys.argv[1:3]
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
