"""The library's exceptions. All are `ropewalk.Error`; some are a built-in one too.

Each C call returns a result code; `check` turns it into the exception of that code, with the
library's own text.
"""

from __future__ import annotations

import builtins
from typing import Optional


class Error(Exception):
    """Anything that Ropewalk reports. Plain `Error` is a broken invariant of Ropewalk itself."""


class ArgumentError(Error, ValueError):
    """A value that can never be right here: a wrong root, type, size or buffer."""


class UsageError(Error):
    """A right value at the wrong time or in the wrong combination."""


class NotCopiedError(UsageError, TypeError):
    """An object that cannot be shared was to be pickled or copied."""


class SystemCallError(Error, OSError):
    """The operating system said no; the text carries its words."""


class CudaError(Error):
    """The CUDA runtime or driver said no."""


class PeerLostError(Error, ConnectionError):
    """Another rank died, left or aborted; the text names it."""


class TimeoutError(Error, builtins.TimeoutError):
    """A deadline passed; the text names the ranks that did not answer."""


class InterruptedError(Error, builtins.InterruptedError):
    """A signal's handler ended an earlier operation, by raising an exception."""


# Result codes of ropewalk.h.
SUCCESS = 0
INVALID_ARGUMENT = 4
INVALID_USAGE = 5
IN_PROGRESS = 7
INTERRUPTED = 9

_CLASSES: dict[int, type[Error]] = {
    1: CudaError,
    2: SystemCallError,
    3: Error,
    INVALID_ARGUMENT: ArgumentError,
    INVALID_USAGE: UsageError,
    6: PeerLostError,
    8: TimeoutError,
    INTERRUPTED: InterruptedError,
}


def error(result: int, text: Optional[str]) -> Error:
    """The exception for a result code; `text` is the library's."""
    return _CLASSES.get(result, Error)(text or f"result {result} without a text")
