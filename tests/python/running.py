"""The program as a running child process, and its output."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import DEADLINE_SECONDS


def rows(text: str) -> list[list[str]]:
    """The words of each line of the table."""
    return [line.split() for line in text.splitlines() if line and not line.startswith("#")]


def start(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "ropewalk", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Ignored where the tests themselves run in the background.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        **options,
    )


def run_script(script: str) -> None:
    """Runs a Python program in a process of its own; it must end well and say nothing."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )
    said = (done.returncode, done.stdout, done.stderr)
    assert said == (0, "", ""), "{} {}\n{}".format(*said)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def run_ranks(
    command: list[str],
    size: int,
    extra: dict[str, str] | None = None,
    by_rank: list[dict[str, str]] | None = None,
) -> list[str]:
    """Runs `command` as `size` ranks with torchrun's variables; what each printed.

    All must end with status 0.
    """
    port = str(free_port())
    ranks = []
    for rank in range(size):
        environment = os.environ | (extra or {}) | (by_rank[rank] if by_rank else {})
        environment |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)}
        environment |= {"LOCAL_WORLD_SIZE": str(size)}
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        ranks.append(
            subprocess.Popen(
                command,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        outputs = [rank.communicate(timeout=DEADLINE_SECONDS) for rank in ranks]
    finally:
        for each in ranks:
            if each.poll() is None:
                each.kill()
                each.wait()
    assert [each.returncode for each in ranks] == [0] * size, outputs
    return [output for output, _ in outputs]


def unshare(*flags: str) -> list[str]:
    """The command that runs another one in new namespaces; skips the test where it cannot."""
    program = shutil.which("unshare")
    if program is None or os.geteuid() != 0:
        pytest.skip("needs root and unshare")
    if subprocess.run([program, *flags, "true"], capture_output=True).returncode != 0:
        pytest.skip("namespaces are not permitted here")
    return [program, *flags]


def rank_processes(running: subprocess.Popen[str]) -> list[int]:
    """The ranks' process ids, from the table's header; returns when the table has begun."""
    assert running.stdout is not None
    pids: list[int] = []
    for line in running.stdout:
        found = re.match(r"#  Rank .* Pid +(\d+) on", line)
        if found:
            pids.append(int(found.group(1)))
        if not line.startswith("#"):
            return pids
    raise AssertionError(f"no table: {running.stderr and running.stderr.read()}")


def gone(pids: list[int]) -> bool:
    """Whether the processes end within the deadline."""
    until = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < until:
        if not any(Path(f"/proc/{pid}").exists() for pid in pids):
            return True
        time.sleep(0.02)
    return False


def end_with(number: signal.Signals, *arguments: str) -> list[int]:
    """Signals the program while it runs: it ends by that, and all its ranks do.

    Returns the process ids of its ranks.
    """
    running = start(*arguments)
    try:
        pids = rank_processes(running)
        running.send_signal(number)
        running.communicate(timeout=DEADLINE_SECONDS)
        wanted = -number if number == signal.SIGKILL else 128 + number
        assert running.returncode == wanted
        assert gone(pids)
        return pids
    finally:
        running.kill()


def kill_rank(rank: int, *arguments: str) -> tuple[int, str]:
    """Kills a rank's process while the program runs: it ends by that, and all its ranks do.

    Returns the killed process's id, and what the program said.
    """
    running = start(*arguments)
    try:
        pids = rank_processes(running)
        os.kill(pids[rank], signal.SIGKILL)
        _, said = running.communicate(timeout=DEADLINE_SECONDS)
        assert running.returncode == 128 + signal.SIGKILL
        assert gone(pids)
        return pids[rank], said
    finally:
        running.kill()
