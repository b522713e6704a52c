"""Handles of operations that were started and not waited for."""

from __future__ import annotations

import ctypes
import math
import numbers
from collections import deque
from typing import Any, Callable, Final, Generic, Optional, TypeVar

from ropewalk import errors, interrupts
from ropewalk._library import Request, check_request, library
from ropewalk.arrays import Scalar
from ropewalk.process_bound import ProcessBound

Result = TypeVar("Result")

# rwRequestWait's word for as long as it takes; also for what does not fit its microseconds.
_FOR_EVER: Final = -1
_LONGEST_SECONDS: Final = 1e12

# Requests whose handle was dropped while the operation ran: their buffers must stay. Swept when
# the next request is started, by any thread: a deque's append and popleft need no lock, which
# __del__ could not take safely.
_orphans: deque[tuple[Request, Any]] = deque()


def sweep() -> None:
    """Forgets orphans that are done."""
    for _ in range(len(_orphans)):
        try:
            orphan = _orphans.popleft()
        except IndexError:
            return
        if library().rwRequestWait(orphan[0], 0) == errors.IN_PROGRESS:
            _orphans.append(orphan)
        else:
            library().rwRequestFree(orphan[0])


def microseconds(timeout: Optional[float]) -> int:
    """What rwRequestWait takes for `timeout` seconds; -1 for None, or more than it can hold."""
    if timeout is None:
        return _FOR_EVER
    if not isinstance(timeout, numbers.Real) or math.isnan(timeout):
        raise errors.ArgumentError(f"timeout of {timeout!r} is not a number of seconds")
    if timeout < 0:
        raise errors.ArgumentError(f"timeout of {timeout} s is negative")
    return int(timeout * 1e6) if timeout < _LONGEST_SECONDS else _FOR_EVER


class Handle(ProcessBound, Generic[Result]):
    """An operation that was started with `blocking=False`. Keeps its arrays alive.

    Of an operation on a GPU: it is done when its stream has come past it.

    Threads: one at a time.
    """

    def __init__(
        self,
        result: Result,
        owners: Any,
        *,
        scalar: Optional[Scalar] = None,
        at_end: Optional[Callable[[], None]] = None,
    ) -> None:
        """Made by the operations of a Communicator.

        `scalar` is what the result is taken from, where that is one. `at_end` raises what a stream
        cannot tell: that the operation ended badly.
        """
        self._scalar = scalar
        self._at_end = at_end
        self._request = Request()
        self._started = False
        self._finished = False
        self._result = result
        self._owners = owners

    def _slot(self) -> Any:
        """Where the library puts the request."""
        self._started = True
        return ctypes.byref(self._request)

    def wait(self, timeout: Optional[float] = None) -> Result:
        """Waits until the operation is done and returns the array that holds the result.

        Args:
            timeout: seconds, or None to wait as long as it takes.

        Raises:
            ArgumentError: `timeout` is not a number of seconds.
            TimeoutError: `timeout` passed first. The operation goes on; wait again.
            Error: the operation failed.
        """
        limit = microseconds(timeout)
        if not self._finished and not self._poll(limit):
            raise errors.TimeoutError(f"the operation is not done after {timeout} s")
        return self._result if self._scalar is None else self._scalar.value()

    def done(self) -> bool:
        """Whether the operation has ended. Does not wait.

        Raises:
            Error: the operation failed.
        """
        return self._finished or self._poll(0)

    def _poll(self, timeout_us: int) -> bool:
        if not self._started:
            raise errors.UsageError("the operation is in a group that has not ended")
        if not self._request:
            raise errors.UsageError("the operation failed before, or could not be started")
        result = library().rwRequestWait(self._request, timeout_us)
        if result == errors.IN_PROGRESS:
            return False
        if result == errors.INTERRUPTED:
            interrupts.reraise()  # the wait was; else the operation
        if result == errors.INVALID_USAGE and not library().rwRequestError(self._request):
            check_request(result, self._request.value)  # the question was refused
        self._owners = None
        try:
            check_request(result, self._request.value)
            if self._at_end is not None:
                self._at_end()
            self._finished = True
        finally:
            library().rwRequestFree(self._request)
            self._request = Request()
        return True

    def __del__(self) -> None:
        """Hands the arrays of an unfinished operation to the orphans."""
        if self._request:
            _orphans.append((self._request, self._owners))
