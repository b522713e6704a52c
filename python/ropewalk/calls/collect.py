"""Asks the processes of this host for the records of their communicators (setting STATUS).

Also a program of its own, of the standard library alone, which is run on other hosts from standard
input: it prints what they answer, a line of JSON for each communicator, and a line {"silent": PID}
for each process that does not answer.
"""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import sys
import threading

_NAME = re.compile(rb"@(ropewalk-status-(\d+)-(\d+)-[0-9a-f]{16})\s")


def endpoints(user: int | None = None) -> list[tuple[str, int, int]]:
    """Name, user and process of each; those of `user` alone, of all for None."""
    try:
        with open("/proc/net/unix", "rb") as file:
            text = file.read()
    except OSError:
        return []
    found = {
        (match.group(1).decode(), int(match.group(2)), int(match.group(3)))
        for match in _NAME.finditer(text)
    }
    return sorted(each for each in found if user is None or each[1] == user)


def ask(name: str, user: int, calls: int, timeout: float) -> str | None:
    """What the endpoint answers; None when it does not, or is not that user's.

    Raises:
        ConnectionError: its process has ended.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        parts = []
        try:
            connection.connect("\0" + name)
            raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            if struct.unpack("3i", raw)[1] != user:  # anybody may take such a name
                return None
            connection.sendall(f"calls {calls}\n".encode())
            while part := connection.recv(1 << 20):
                parts.append(part)
        except (socket.timeout, BlockingIOError):  # also a queue that is full
            return None
    return b"".join(parts).decode("utf-8", "replace")


def collect(calls: int, timeout: float) -> tuple[list[str], list[int]]:
    """Answers of this user's processes (root: of all), a line each, and those that are silent."""
    own = os.geteuid()
    found = endpoints(None if own == 0 else own)
    lines: list[str] = []
    silent: list[int] = []

    def one(name: str, user: int, process: int) -> None:
        try:
            answer = ask(name, user, calls, timeout)
        except OSError:
            return  # it has ended meanwhile
        if answer is None:
            silent.append(process)
        else:
            lines.extend(answer.splitlines())

    # At once: each that stands still costs the whole time.
    threads = [threading.Thread(target=one, args=each, daemon=True) for each in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return lines, sorted(silent)


if __name__ == "__main__":
    answers, without = collect(int(sys.argv[1]), float(sys.argv[2]))
    for line in [*answers, *(json.dumps({"silent": process}) for process in without)]:
        print(line)
