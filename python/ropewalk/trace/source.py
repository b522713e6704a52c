"""Samplers on hosts: their processes, their lines, and how their clocks stand to this host's."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any, Callable, Final, Optional

from ropewalk.launching.hosts import Host
from ropewalk.trace import sampler

_CLOCK_PERIOD_SECONDS: Final = 5.0
# The first question is answered late: Python starts.
_FIRST_CLOCKS: Final = 5
_END_SECONDS: Final = 2.0

Sample = dict[str, Any]


class Source:
    """One host's sampler. Its lines are handed to functions on a thread of its own."""

    def __init__(
        self,
        host: Host,
        period: float,
        ssh: Sequence[str],
        timeout: float,
        *,
        described: Callable[[Source], None],
        sampled: Callable[[Source, Sample], None],
        ended: Callable[[Source, str], None],
    ) -> None:
        """Starts it.

        Args:
            host: where.
            period: seconds between samples.
            ssh: the program, with its options.
            timeout: seconds for connecting.
            described: called when it has told what the host has (`description`).
            sampled: called with each sample.
            ended: called with the reason when it ends by itself.
        """
        self.host = host
        self.description: Optional[dict[str, Any]] = None
        self.offset_ns = 0
        """this host's CLOCK_MONOTONIC less that one's"""
        self._round_trip_ns: Optional[int] = None
        self._asked_ns = 0
        self._described, self._sampled, self._ended = described, sampled, ended
        self._closing = False
        program = inspect.getsource(sampler)
        if host.is_local:
            command = [sys.executable, "-u", "-c", program, f"{period:g}"]
        else:
            words = shlex.join(["exec", "python3", "-u", "-c", program, f"{period:g}"])
            limit = max(1, round(timeout))
            command = [
                *ssh, "-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={limit}",
                "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=4",
                host.name, f"exec /bin/sh -c {shlex.quote(words)}",
            ]  # fmt: skip
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the command
        )
        for body in (self._read, self._ask_clocks):
            threading.Thread(target=body, daemon=True).start()

    @property
    def name(self) -> str:
        """As it calls itself, or as ssh takes it."""
        return str(self.description["host"]) if self.description else self.host.name

    def close(self) -> None:
        """Ends it."""
        self._closing = True
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        reason = ""
        try:
            for raw in self._process.stdout:
                self._take(json.loads(raw))
        except (ValueError, KeyError, TypeError) as error:
            reason = f"its sampler wrote no sample: {error}"
            self._process.kill()
        if self._closing:
            return
        said = self._process.stderr.read().decode("utf-8", "replace").strip().splitlines()
        reason = reason or (said[-1] if said else f"ended with status {self._process.wait()}")
        self._ended(self, reason)

    def _take(self, line: dict[str, Any]) -> None:
        if "clock" in line:
            now = time.monotonic_ns()
            round_trip = now - self._asked_ns
            # The middle of the shortest exchange: it errs by half of that at most.
            if self._round_trip_ns is None or round_trip < self._round_trip_ns:
                self._round_trip_ns = round_trip
                self.offset_ns = self._asked_ns + round_trip // 2 - int(line["clock"][0])
        elif "host" in line:
            self.description = line
            self._described(self)
        elif self.description is not None:
            self._sampled(self, line)

    def _ask_clocks(self) -> None:
        if self.host.is_local:
            return  # one clock for all processes
        asked = 0
        while not self._closing and self._process.poll() is None:
            if self.description is not None:
                asked += 1
                self._asked_ns = time.monotonic_ns()
                try:
                    assert self._process.stdin is not None
                    os.write(self._process.stdin.fileno(), b"clock\n")
                except (OSError, ValueError):
                    return
            time.sleep(0.05 if asked < _FIRST_CLOCKS else _CLOCK_PERIOD_SECONDS)


def this_host() -> Host:
    """For its sampler."""
    return Host(socket.gethostname())
