"""Arrays on GPUs that the GPUs of other processes read where they lie."""

from __future__ import annotations

import ctypes
from types import TracebackType
from typing import TYPE_CHECKING, Any, Optional

from ropewalk._library import Window, check, library
from ropewalk.process_bound import ProcessBound

if TYPE_CHECKING:
    from ropewalk.communicator import Communicator


class Registration(ProcessBound):
    """A registered array. Made by `Communicator.register`; keeps the array alive.

    Lasts until `close`, the end of the block as a context manager, or the communicator's end.

    Threads: as the communicator's.
    """

    def __init__(self, comm: Communicator, owner: Any) -> None:
        """See Communicator.register."""
        self._comm = comm
        self._owner = owner
        self._window = Window()

    def _slot(self) -> Any:
        """Where the library puts the window."""
        return ctypes.byref(self._window)

    @property
    def closed(self) -> bool:
        """Whether the array is not registered: not yet, in a group that is open, or no more."""
        return not self._window or self._comm.closed

    def close(self) -> None:
        """Ends the registration; more than once is fine.

        Local: the other ranks need not close theirs, or not now. Does not wait: operations that
        were called go on, and later ones on the array work as before, staged. CUDA graphs that were
        captured with it must not be launched any more. Memory that is freed comes back to the GPU
        when the other processes have closed it: when they register or close something, between
        operations after they have closed their part, or at the communicator's end.
        """
        window, self._window = self._window, Window()
        self._owner = None
        self._comm._forget(self)
        if window and not self._comm.closed:
            comm = self._comm.c_handle
            check(library().rwCommWindowDeregister(comm, window))

    def __enter__(self) -> Registration:
        """Itself."""
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        """Closes; in a forked child does nothing."""
        if not self._comm.elsewhere:
            self.close()
