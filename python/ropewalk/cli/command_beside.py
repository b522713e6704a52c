"""A command that a tool runs while it does something beside it: the tool must not disturb it."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Callable, Optional

NOT_STARTED = (126, 127)


def run_beside(command: list[str], environment: Optional[Mapping[str, str]] = None) -> int:
    """Runs it to its end; it has this terminal, and gets this process's signals.

    Returns:
        its exit status; 128 and the signal's number where a signal ended it; 126 or 127, after a
        message, when it cannot be started.
    """
    with _signals_passed_on() as has_started:
        try:
            process = subprocess.Popen(command, env=environment)
        except OSError as error:
            missing = isinstance(error, FileNotFoundError)
            words = "not found" if missing else error.strerror
            print(f"ropewalk: {command[0]}: {words}", file=sys.stderr)
            return 127 if missing else 126
        has_started(process)
        status = process.wait()
    return 128 - status if status < 0 else status


@contextlib.contextmanager
def _signals_passed_on() -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """The command gets the signals that would end this process, from what is yielded on.

    What came while it was being started it gets then: it may run before its start is known here.
    Ctrl-C comes to both by the terminal: the command decides whether it ends.
    """
    child: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def pass_on(number: int, _frame: object) -> None:
        if not child:
            early.append(number)
        for process in child:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    def ignore(_number: int, _frame: object) -> None:
        pass

    def has_started(process: subprocess.Popen[bytes]) -> None:
        child.append(process)
        for number in early:
            pass_on(number, None)

    actions = {signal.SIGINT: ignore, signal.SIGTERM: pass_on, signal.SIGHUP: pass_on}
    before = {number: signal.signal(number, action) for number, action in actions.items()}
    try:
        yield has_started
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
