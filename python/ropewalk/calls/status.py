"""The records of jobs that run, asked from outside: of this host, and by ssh of others."""

from __future__ import annotations

import concurrent.futures
import inspect
import json
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from ropewalk.calls import collect
from ropewalk.calls.records import Report, Reports, joined
from ropewalk.errors import ArgumentError
from ropewalk.launching.hosts import Host

_HOSTS_AT_ONCE = 32


@dataclass(frozen=True)
class Found:
    """What processes answered."""

    communicators: list[Reports]
    silent: list[tuple[Optional[str], int]] = field(default_factory=list)
    """host (None: this one) and number of each process that does not answer"""
    unreached: list[str] = field(default_factory=list)
    """why hosts could not be asked"""

    def only(self, job: str) -> Found:
        """With the communicators alone whose names begin so."""
        chosen = [each for each in self.communicators if each.communicator.startswith(job)]
        return Found(chosen, self.silent, self.unreached)


def words_of(ssh: str) -> list[str]:
    """The words of a command. Raises ArgumentError."""
    try:
        words = shlex.split(ssh)
    except ValueError as error:
        raise ArgumentError(f"--ssh: {error}") from error
    if not words:
        raise ArgumentError("--ssh: names no program")
    return words


def of_this_host(calls: int, timeout: float) -> Found:
    """The last `calls` of each rank; `timeout` in seconds for each process."""
    lines, silent = collect.collect(calls, timeout)
    return Found(joined(_reports(lines)), [(None, process) for process in silent])


def of_hosts(hosts: Sequence[Host], ssh: Sequence[str], calls: int, timeout: float) -> Found:
    """As of_this_host, of several: all at once."""
    reports: list[Report] = []
    silent: list[tuple[Optional[str], int]] = []
    unreached: list[str] = []
    with concurrent.futures.ThreadPoolExecutor(min(_HOSTS_AT_ONCE, len(hosts))) as pool:
        asked = {host: pool.submit(_ask_host, host, ssh, calls, timeout) for host in hosts}
    for host, future in asked.items():
        try:
            lines = future.result()
        except OSError as error:
            unreached.append(f"host {host.name}: {error}")
            continue
        for line in lines:
            document = json.loads(line)
            if "silent" in document:
                silent.append((host.name, int(document["silent"])))
            else:
                reports.append(Report.of(document, f"host {host.name}"))
    return Found(joined(reports), silent, unreached)


def _reports(lines: Sequence[str]) -> list[Report]:
    return [Report.of(json.loads(line), "a process's answer") for line in lines]


def _ask_host(host: Host, ssh: Sequence[str], calls: int, timeout: float) -> list[str]:
    """Lines of collect.py's output. Raises OSError when there is none."""
    words = f"{calls} {timeout:g}"
    command: dict[str, Any] = {"args": ["/bin/sh", "-c", f"exec python3 - {words}"]}
    if not host.is_local:
        limit = max(1, round(timeout))
        options = ["-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={limit}"]
        command = {"args": [*ssh, *options, host.name, f"exec python3 - {words}"]}
    try:
        done = subprocess.run(
            **command,
            input=inspect.getsource(collect).encode(),
            capture_output=True,
            timeout=3 * timeout + 10,
            start_new_session=True,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(f"no answer within {error.timeout:g} s") from error
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise OSError(said[-1] if said else f"ended with status {done.returncode}")
    answer: bytes = done.stdout
    return answer.decode("utf-8", "replace").splitlines()
