"""What windows of all kinds have in common: a handle of the library's, and its end."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Optional, TypeVar, Union

from ropewalk._library import MessageWindow, check, library
from ropewalk.arguments import integer
from ropewalk.errors import ArgumentError, UsageError
from ropewalk.process_bound import ProcessBound

if TYPE_CHECKING:
    from ropewalk.communicator import Communicator

Device = Union[int, str, None]

_Self = TypeVar("_Self", bound="WindowHandle")


def device_number(device: Device, comm: Communicator) -> int:
    """The GPU's number; -1 for the host's memory."""
    if device is None or device == "cpu":
        return -1
    if isinstance(device, str):
        kind, _, number = device.partition(":")
        if kind == "cuda" and (not number or number.isdecimal()):
            if number:
                return int(number)
            return 0 if comm.device is None else comm.device
        raise ArgumentError(f'device {device!r}: pass "cuda", "cuda:1", 1 or None')
    return integer(device, "device", 0)


class WindowHandle(ProcessBound):
    """A window of a communicator, which one of the kinds makes."""

    def __init__(self, comm: Communicator, slots: int) -> None:
        """Not made yet."""
        self._comm = comm
        self._slots = integer(slots, "slots", 1, 4096)
        self._handle = MessageWindow()

    @property
    def slots(self) -> int:
        """Counters for each source rank."""
        return self._slots

    @property
    def closed(self) -> bool:
        """Whether it was closed, or its communicator was; or is not made yet, in an open group."""
        return not self._handle or self._comm.closed

    # ---- its end

    def close(self) -> None:
        """Ends it. All ranks call; returns when all have, and what they did to it is done.

        Raises:
            UsageError: this rank has operations on it that were started with `blocking=False` and
                have not ended. Wait for them, and call again.
        """
        if self.closed:
            return
        handle = self._open()

        self._comm._call(lambda: check(library().rwWindowFree(handle)), self._let_go)

    def __enter__(self: _Self) -> _Self:
        """Itself."""
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        """Closes, unless the block ends by an exception: the other ranks may not come here."""
        if kind is None and not self._comm.elsewhere:
            self.close()

    # ---- common parts

    def _let_go(self) -> None:
        self._handle = MessageWindow()

    def _open(self) -> MessageWindow:
        self._comm.c_handle  # noqa: B018  raises when the communicator is closed
        if not self._handle:
            raise UsageError("the window was closed, or is in a group that has not ended")
        return self._handle

    def _rank_number(self, value: int, name: str) -> int:
        return integer(value, name, 0, self._comm.size - 1)

    def _slot(self, value: int) -> int:
        return integer(value, "slot", 0, self._slots - 1)
