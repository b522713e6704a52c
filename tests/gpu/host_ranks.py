"""Starts the processes of hosts_rank.py, one for each rank, with settings of Ropewalk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import ropewalk
from gpu_support import DEADLINE_SECONDS

PROGRAM = Path(__file__).parent / "hosts_rank.py"


def start(what: str, ranks: int, hosts: int, **settings: str) -> list[subprocess.Popen[str]]:
    made = ropewalk.unique_id().hex()
    return [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), what, made, str(rank), str(ranks), str(hosts)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **{f"ROPEWALK_{name}": text for name, text in settings.items()}},
        )
        for rank in range(ranks)
    ]


def run(what: str, ranks: int, hosts: int, **settings: str) -> list[str]:
    """What each rank printed. All must end well."""
    processes = start(what, ranks, hosts, **settings)
    try:
        said = [_wait(process) for process in processes]
        for rank, process in enumerate(processes):
            assert process.returncode == 0, "\n".join(said)
            assert f"rank {rank}: " in said[rank]
        return said
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen[str]) -> str:
    """What it printed. One that does not end is killed, and its output kept."""
    try:
        return process.communicate(timeout=DEADLINE_SECONDS)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()[0] + f"no end after {DEADLINE_SECONDS} s\n"
