"""When what waits for a message has waited too long: a thread that looks when it is time."""

from __future__ import annotations

import math
import threading
import time
from typing import Callable, Optional

Look = Callable[[], float]


class Deadlines:
    """Calls at given times. Its one thread sleeps in between, and starts with the first call.

    Threads: any.
    """

    def __init__(self) -> None:
        """Nothing is to be called yet."""
        self._changed = threading.Condition()
        self._times: dict[Look, float] = {}
        self._thread: Optional[threading.Thread] = None
        self._closed = False

    def add(self, until: float, look: Look) -> None:
        """Calls `look` at `until`, or at an earlier time for which it was added.

        Args:
            until: as time.monotonic has it.
            look: returns when it is to be called next; math.inf: not again.
        """
        with self._changed:
            self._times[look] = min(until, self._times.get(look, math.inf))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="ropewalk deadlines", daemon=True
                )
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Ends the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._closed and min(self._times.values(), default=math.inf) > (
                    now := time.monotonic()
                ):
                    left = min(self._times.values(), default=math.inf) - now
                    self._changed.wait(min(left, threading.TIMEOUT_MAX))
                if self._closed:
                    return
                due = [look for look, until in self._times.items() if until <= time.monotonic()]
                for look in due:
                    del self._times[look]
            for look in due:
                until = look()
                if until < math.inf:
                    self.add(until, look)
