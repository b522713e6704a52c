"""Queues: messages between GPUs that kernels of a stream send and receive."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from ropewalk._library import check, library
from ropewalk.arguments import integer
from ropewalk.arrays import buffer_of
from ropewalk.device_arrays import Stream, stream_handle
from ropewalk.errors import ArgumentError
from ropewalk.window_handle import Device, WindowHandle, device_number

if TYPE_CHECKING:
    from ropewalk.communicator import Communicator


class Queues(WindowHandle):
    """Queues of messages from each rank to each, on each slot. Made by `Communicator.queues`.

    A message is sent and received by a kernel of the stream, in the order of the stream; short ones
    take a third to a half of the time of `Window.put` and `signal`, and in CUDA graphs a sixth. The
    call enqueues it and returns; the array must stay until the stream has done it, on a GPU or
    pinned. A kernel that receives holds a block of the GPU until the message is there; if it does
    not come it ends all the same, as a wait for signals, and the communicator's next call raises
    why.

    Every operation may raise:
        ArgumentError: a rank or slot that cannot be right, or memory that a stream cannot use.
        UsageError: the queues were closed, or this build has no kernels.
        PeerLostError, TimeoutError: as for `Window`.

    Threads: as the communicator's. As a context manager they are closed at the end of the block.
    """

    def __init__(self, comm: Communicator, nbytes: int, slots: int, device: Device) -> None:
        """See Communicator.queues."""
        super().__init__(comm, slots)
        number = device_number(device, comm)
        if number < 0:
            raise ArgumentError("device: queues are for GPUs")
        size = integer(nbytes, "nbytes", 1)
        out = ctypes.byref(self._handle)
        comm._call(
            lambda: check(
                library().rwWindowCreateQueues(comm.c_handle, number, size, self._slots, out)
            )
        )

    def send(self, array: Any, peer: int, slot: int = 0, *, stream: Stream) -> None:
        """Enqueues a message of the array's bytes to `peer`, which receives as many."""
        self._enqueue("rwQueueSend", array, "array", peer, slot, stream)

    def receive(self, out: Any, peer: int, slot: int = 0, *, stream: Stream) -> None:
        """Enqueues that `out` is filled by the next message of `peer`, which is as long."""
        self._enqueue("rwQueueReceive", out, "out", peer, slot, stream)

    def _enqueue(
        self, function: str, array: Any, name: str, peer: int, slot: int, stream: Stream
    ) -> None:
        buffer = buffer_of(array, name, writable=name == "out")
        check(
            getattr(library(), function)(
                buffer.address if buffer.nbytes else None,
                buffer.nbytes,
                self._rank_number(peer, "peer"),
                self._slot(slot),
                self._open(),
                stream_handle(stream),
            )
        )
