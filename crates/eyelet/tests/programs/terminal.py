"""Runs a command in a terminal of its own: terminal.py COLUMNS ROWS END COMMAND...

Waits for a frame with rates, sorts by bytes, makes the terminal smaller, and ends the command by
END: `q`, `ctrl-c` or `term`. Prints as JSON what the command wrote at each size, its status, and
whether the terminal is as it was.
"""
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time

columns, rows, end = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
master, slave = pty.openpty()


def resize(columns, rows):
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def own_terminal():
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)


resize(columns, rows)
before = termios.tcgetattr(slave)
child = subprocess.Popen(
    sys.argv[4:], stdin=slave, stdout=slave, stderr=slave, preexec_fn=own_terminal
)
deadline = time.monotonic() + 120


def read_until(is_there):
    said = b""
    while not is_there(said):
        if time.monotonic() > deadline:
            sys.exit(f"not seen in {said!r}")
        if select.select([master], [], [], 0.2)[0]:
            said += os.read(master, 65536)
    return said


first = read_until(lambda said: said.count(b"each second") > 1)
os.write(master, b"p")
first += read_until(lambda said: b"OUT*" in said)
resize(40, 10)
# The name of the sort is in the last line; one frame may be on its way in the old size.
second = read_until(lambda said: said.count(b"\x1b[1;1H") > 2)
second = second[second.index(b"\x1b[1;1H", second.index(b"\x1b[1;1H") + 1):]
if end == "term":
    child.send_signal(signal.SIGTERM)
else:
    os.write(master, b"\x03" if end == "ctrl-c" else b"q")
while child.poll() is None:
    if time.monotonic() > deadline:
        child.kill()
        sys.exit("it does not end")
    if select.select([master], [], [], 0.1)[0]:
        last = os.read(master, 65536)
        second += last
while select.select([master], [], [], 0)[0]:
    second += os.read(master, 65536)
print(
    json.dumps(
        {
            "first": first.decode(),
            "second": second.decode(),
            "status": child.returncode,
            "restored": termios.tcgetattr(slave) == before,
        }
    )
)
