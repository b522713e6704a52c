"""Groups: calls that are started together, so that none waits for another.

The calls between start and end are only checked and noted; the end hands them to the library. So
an exception inside the block starts nothing.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Callable, Optional

from ropewalk._library import check, library


class _Open(threading.local):
    calls: Optional[list[Callable[[], None]]] = None
    afterwards: list[Callable[[], None]]


_open = _Open()


def is_open() -> bool:
    """Whether this thread has an open group."""
    return _open.calls is not None


def defer(call: Callable[[], None], then: Optional[Callable[[], None]] = None) -> bool:
    """Notes `call` when this thread has an open group; False when there is none.

    `then` is called when the operations of the group have been started.
    """
    if _open.calls is None:
        return False
    _open.calls.append(call)
    if then is not None:
        _open.afterwards.append(then)
    return True


@contextlib.contextmanager
def group() -> Iterator[None]:
    """Starts the operations of the block together at its end, on any number of communicators.

    Needed where operations wait for each other: an exchange of sends and receives, or several
    ranks in one thread. At the end, waits for the operations that were not given `blocking=False`.
    Groups nest; the outermost end counts.

    Example:
        with ropewalk.group():
            comm.send(mine, peer=right)
            comm.recv(theirs, peer=left)

    Raises:
        Error: of the first operation that failed.
    """
    if _open.calls is not None:
        yield
        return
    _open.calls, _open.afterwards = [], []
    try:
        yield
        calls, afterwards = _open.calls, _open.afterwards
    finally:
        _open.calls = None
    check(library().rwGroupStart())
    try:
        for call in calls:
            call()
    finally:
        check(library().rwGroupEnd())
    for then in afterwards:
        then()
