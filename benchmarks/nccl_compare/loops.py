"""Runs nccl_loop, a program that loads one library and takes commands."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

ANSWER_LIMIT_S = 60.0
START_LIMIT_S = 120.0


class LoopError(Exception):
    """The library refused, gave no answer in time, or its process died."""


@dataclass(frozen=True)
class Outcome:
    time_us: float
    wrong: int


class Loop:
    """A running nccl_loop. Started at the first command, and again after a failure."""

    def __init__(
        self,
        program: Path,
        library: Path,
        mode: str,
        gpus: int,
        max_bytes: int,
        environment: dict[str, str] | None = None,
        windows: bool = False,
    ) -> None:
        """`environment` is added to this process's. With `windows` the buffers are registered."""
        self._environment = environment or {}
        self._command = [str(program), str(library), mode, str(gpus), str(max_bytes)]
        self._command += ["windows"] if windows else []
        self._process: subprocess.Popen[str] | None = None
        self.version = 0
        self.start_s = 0.0
        self.failures = 0

    def measure(self, operation: str, size: int, launch: str, iterations: int) -> Outcome:
        if self._process is None:
            self._start()
        return self._ask(f"{operation} {size} {launch} {iterations}", ANSWER_LIMIT_S)

    def lose_rank(self, size: int, iterations: int) -> Outcome:
        """Kills the last rank, and ends. `wrong` is the error that the others' library reports."""
        if self._process is None:
            self._start()
        outcome = self._ask(f"lose_rank {size} stream {iterations}", ANSWER_LIMIT_S)
        self.close()
        return outcome

    def close(self) -> None:
        """Ends the program in order: communicators are destroyed."""
        if self._process is None:
            return
        process, self._process = self._process, None
        try:
            process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            self._kill(process)

    def _start(self) -> None:
        environment = {"NCCL_NVLS_ENABLE": "0", **os.environ, **self._environment}
        self._process = subprocess.Popen(
            self._command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            start_new_session=True,
        )
        first = self._answer(START_LIMIT_S)
        self.start_s, self.version = first.time_us / 1e6, first.wrong

    def _ask(self, line: str, limit_s: float) -> Outcome:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._give_up("the program has ended")
        return self._answer(limit_s)

    def _answer(self, limit_s: float) -> Outcome:
        assert self._process is not None
        assert self._process.stdout is not None
        end = time.monotonic() + limit_s
        # Lines come whole and one at a time, so none can wait in Python's buffer.
        if not select.select([self._process.stdout], [], [], max(0, end - time.monotonic()))[0]:
            self._give_up(f"no answer for {limit_s:g} s")
        words = self._process.stdout.readline().split()
        if not words:
            self._give_up("the program has ended")
        if words[0] == "error":
            self._give_up(" ".join(words[1:]))
        return Outcome(float(words[0]), int(words[1]))

    def _give_up(self, why: str) -> None:
        self.failures += 1
        if self._process is not None:
            process, self._process = self._process, None
            self._kill(process)
        raise LoopError(why)

    @staticmethod
    def _kill(process: subprocess.Popen[str]) -> None:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
