"""Windows: memory that ranks put to and get from, signals, and prepared batches of them.

In the host's memory or in that of GPUs; the host, or a CUDA stream, does the operations.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional

from ropewalk import request
from ropewalk._library import Batch as BatchHandle
from ropewalk._library import DeviceTrigger, check, library
from ropewalk.arguments import integer
from ropewalk.arrays import Buffer, buffer_of
from ropewalk.device_arrays import Stream, stream_handle
from ropewalk.errors import ArgumentError
from ropewalk.process_bound import ProcessBound
from ropewalk.request import Handle
from ropewalk.window_handle import Device, WindowHandle, device_number

if TYPE_CHECKING:
    from ropewalk.communicator import Communicator

_ALL_PEERS = -1
_MOST_COUNT = (1 << 63) - 1
_MOST_OFFSET = (1 << 64) - 1


class DeviceMemory:
    """A part of a window in a GPU's memory, as bytes. It does not keep the window.

    `torch.as_tensor(it, device="cuda:0")` and `cupy.asarray(it)` make an array of it.
    """

    def __init__(self, address: int, nbytes: int) -> None:
        """What lies at `address`."""
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
            "strides": None,
        }


class Trigger(NamedTuple):
    """What one launch of a batch waits for: `value`, of 64 bits, at `address`.

    As rwDeviceTrigger of the C API, which `ropewalk::device::launch` takes.
    """

    address: int
    value: int


def _buffer(array: Any, name: str, *, writable: bool) -> Buffer:
    """Memory that an operation reads or writes."""
    buffer = buffer_of(array, name, writable=writable)
    if buffer.scalar is not None and writable:
        raise ArgumentError(f"{name} is a NumPy scalar, which cannot change; pass an array")
    return buffer


class Window(WindowHandle):
    """A window, as this rank has it. Made by `Communicator.window`.

    Each rank has a part, which the others put to and get from without a call of its own. What tells
    it is a signal: a 64-bit counter for each source rank and slot, which the source raises and its
    owner waits for. Offsets are in bytes from the beginning of the peer's part.

    Order: the operations of one rank on one peer take effect in the order in which they were
    called, with `blocking` True or False: a signal is seen after the data of the puts before it.
    All others are ordered by signals, by `flush`, and by what the program does after it waited.

    Every operation takes `blocking`. True returns when it is done; False returns a `Handle` at
    once, which keeps the array alive, and whose `wait` returns it.

    It takes `stream` as well (the stream's number, or what PyTorch, CuPy or anything with
    `__cuda_stream__` calls one): the call enqueues the operation and returns, the stream does it in
    its order, and the array must stay until then, on a GPU or pinned. Without, the host copies, and
    what is at work on the array must be over. A stream's wait that cannot be met ends all the same;
    the communicator's next call raises why. A window in the host's memory is used by streams of one
    GPU, and by none that is being captured; an array that it was made of must be pinned. Without a
    stream arrays are the host's there.

    Every operation may raise:
        ArgumentError: a range beyond the peer's part, or a rank, slot or count that cannot be
            right. Nothing was done.
        UsageError: the window was closed.
        PeerLostError: the peer left in order; nothing was done, and the communicator stays whole.
            Or another rank died or aborted; the communicator is broken then.
        TimeoutError: the deadline (setting TIMEOUT) passed; the communicator is broken.

    Threads: as the communicator's. As a context manager a window is closed at the end of the block;
    after an exception the communicator's end closes it.
    """

    def __init__(
        self, comm: Communicator, array_or_nbytes: Any, slots: int, device: Device = None
    ) -> None:
        """See Communicator.window."""
        super().__init__(comm, slots)
        number = device_number(device, comm)
        self._owner: Any = None
        self._on_gpu = number >= 0
        out = ctypes.byref(self._handle)
        if _is_size(array_or_nbytes):
            nbytes = integer(array_or_nbytes, "nbytes", 0)

            def make() -> None:
                check(library().rwWindowCreateOn(comm.c_handle, number, nbytes, self._slots, out))
        else:
            buffer = _buffer(array_or_nbytes, "array", writable=True)
            if device is not None and number != (-1 if buffer.device is None else buffer.device):
                raise ArgumentError(f"device {device}: the array is elsewhere")
            self._owner = array_or_nbytes, buffer
            self._on_gpu = buffer.device is not None

            def make() -> None:
                address = buffer.address if buffer.nbytes else None
                check(
                    library().rwWindowRegister(
                        comm.c_handle, address, buffer.nbytes, self._slots, out
                    )
                )

        comm._call(make)

    # ---- what it is

    @property
    def array(self) -> Any:
        """The array that was given; None where the library allocated the memory."""
        return None if self._owner is None else self._owner[0]

    def nbytes(self, rank: Optional[int] = None) -> int:
        """Bytes of the part of `rank`; of this rank's without."""
        size = ctypes.c_size_t()
        which = self._rank_number(self._comm.rank if rank is None else rank, "rank")
        check(library().rwWindowMemory(self._open(), which, None, ctypes.byref(size)))
        return size.value

    def memory(self, rank: Optional[int] = None) -> Optional[memoryview]:
        """The part of `rank` where the library allocated it and this host has it; else None.

        This rank's own without `rank`. For `numpy.frombuffer(window.memory(), dtype="float32")` and
        the like; the view stays valid when the window is closed. Who stores to another rank's part
        tells it by `signal`, as after a put.
        """
        which = self._rank_number(self._comm.rank if rank is None else rank, "rank")
        descriptor, offset = ctypes.c_int(), ctypes.c_size_t()
        check(
            library().rwWindowDescriptor(
                self._open(), which, ctypes.byref(descriptor), ctypes.byref(offset)
            )
        )
        size = self.nbytes(which)
        if descriptor.value < 0:
            return None
        if size == 0:
            return memoryview(bytearray())
        return memoryview(mmap.mmap(descriptor.value, size, offset=offset.value))

    def device_memory(self, rank: Optional[int] = None) -> Optional[DeviceMemory]:
        """The part of `rank` in a GPU's memory where this rank's GPU reaches it; else None.

        This rank's own without `rank`. Not to be used when the window is closed.
        """
        which = self._rank_number(self._comm.rank if rank is None else rank, "rank")
        if not self._on_gpu:
            return None
        address, size = ctypes.c_void_p(), ctypes.c_size_t()
        check(
            library().rwWindowMemory(self._open(), which, ctypes.byref(address), ctypes.byref(size))
        )
        return None if address.value is None else DeviceMemory(address.value, size.value)

    # ---- operations

    def put(
        self,
        array: Any,
        peer: int,
        offset: int = 0,
        *,
        blocking: bool = True,
        stream: Stream = None,
    ) -> Optional[Handle[Any]]:
        """Copies `array` to `offset` of the part of `peer`.

        Done: `array` may change. The peer sees the data when it has waited for a later signal.
        """
        source = self._operand(array, "array", stream, writable=False)
        place = (*_range(source), self._rank_number(peer, "peer"), _offset(offset), self._open())
        return self._start("rwPut", place, array, source, blocking, stream)

    def put_signal(
        self,
        array: Any,
        peer: int,
        offset: int = 0,
        slot: int = 0,
        *,
        blocking: bool = True,
        stream: Stream = None,
    ) -> Optional[Handle[Any]]:
        """`put`, then `signal`."""
        source = self._operand(array, "array", stream, writable=False)
        place = (*_range(source), self._rank_number(peer, "peer"), _offset(offset))
        return self._start(
            "rwPutSignal", (*place, self._slot(slot), self._open()), array, source, blocking, stream
        )

    def get(
        self,
        out: Any,
        peer: int,
        offset: int = 0,
        *,
        blocking: bool = True,
        stream: Stream = None,
    ) -> Optional[Handle[Any]]:
        """Fills `out` from `offset` of the part of `peer`.

        It sees this rank's own earlier puts to that peer; of later ones, which begin before it is
        done, it may see some.
        """
        target = self._operand(out, "out", stream, writable=True)
        place = (*_range(target), self._rank_number(peer, "peer"), _offset(offset), self._open())
        return self._start("rwGet", place, out, target, blocking, stream)

    def signal(
        self,
        peer: int,
        slot: int = 0,
        count: int = 1,
        *,
        blocking: bool = True,
        stream: Stream = None,
    ) -> Optional[Handle[None]]:
        """Raises the counter that `peer` has for this rank and `slot` by `count`."""
        arguments = (self._rank_number(peer, "peer"), self._slot(slot), _count(count), self._open())
        return self._start("rwSignal", arguments, None, None, blocking, stream)

    def wait_signal(
        self,
        peer: int,
        slot: int = 0,
        count: int = 1,
        *,
        blocking: bool = True,
        stream: Stream = None,
    ) -> Optional[Handle[None]]:
        """Waits for `count` signals of `peer` beyond those that were waited for before.

        Done: what `peer` put here before them may be read.
        """
        arguments = (self._rank_number(peer, "peer"), self._slot(slot), _count(count), self._open())
        return self._start("rwWaitSignal", arguments, None, None, blocking, stream)

    def signals(self, peer: int, slot: int = 0) -> int:
        """How many signals of `peer` have arrived, those waited for included. Does not wait."""
        found = ctypes.c_uint64()
        check(
            library().rwSignalCount(
                self._rank_number(peer, "peer"), self._slot(slot), self._open(), ctypes.byref(found)
            )
        )
        return found.value

    def flush(self, peer: Optional[int] = None, *, stream: Stream = None) -> None:
        """Returns when all that this rank did to the part of `peer` is complete there.

        None: of all peers. With `stream` the stream goes on then, of what it did itself.
        """
        which = _ALL_PEERS if peer is None else self._rank_number(peer, "peer")
        handle = None if stream is None else stream_handle(stream)
        check(library().rwFlush(which, self._open(), handle, None))

    def batch(self) -> Batch:
        """An empty batch of operations on this window."""
        return Batch(self)

    # ---- common parts

    def _let_go(self) -> None:
        super()._let_go()
        self._owner = None

    def _operand(self, array: Any, name: str, stream: Stream, *, writable: bool) -> Buffer:
        """Memory that the host, or `stream`, reads or writes."""
        buffer = _buffer(array, name, writable=writable)
        if stream is None:
            self._require_host(buffer, name)
        return buffer

    def _require_host(self, buffer: Buffer, name: str) -> None:
        """The host's calls copy by the processor where the window is in the host's memory."""
        if buffer.device is not None and not self._on_gpu:
            raise ArgumentError(
                f"{name}: it is on a GPU, and the window in the host's memory: pass a stream, "
                "or an array of the host's"
            )

    @staticmethod
    def _start(
        function: str,
        arguments: tuple[Any, ...],
        result: Any,
        keep: Any,
        blocking: bool,
        stream: Stream = None,
    ) -> Optional[Handle[Any]]:
        call: Callable[..., int] = getattr(library(), function)
        if stream is not None:
            if not blocking:
                raise ArgumentError("blocking=False: an operation on a stream has no handle")
            check(call(*arguments, stream_handle(stream), None))
            return None
        if blocking:
            check(call(*arguments, None, None))
            return None
        request.sweep()
        handle: Handle[Any] = Handle(result, keep)
        check(call(*arguments, None, handle._slot()))
        return handle


class Batch(ProcessBound):
    """Operations that are prepared once and launched together, any number of times.

    Made by `Window.batch`. The operations are those of a window, with the same meaning; each
    returns the batch. They start in the order in which they were added; a wait for signals, or a
    flush, holds back those after it. Arrays are read and written when the batch is launched; it
    keeps them alive.

    Threads: as the communicator's.
    """

    def __init__(self, window: Window) -> None:
        """See Window.batch."""
        self._window = window
        self._keep: list[Optional[Buffer]] = []
        self._of_gpu: Optional[Buffer] = None  # the last of them that is on a GPU
        self._process = os.getpid()
        self._handle = BatchHandle()
        check(library().rwBatchCreate(window._comm.c_handle, ctypes.byref(self._handle)))

    def put(self, array: Any, peer: int, offset: int = 0) -> Batch:
        """As Window.put."""
        source = _buffer(array, "array", writable=False)
        self._add("rwBatchPut", (*_range(source), self._peer(peer), _offset(offset)), source)
        return self

    def get(self, out: Any, peer: int, offset: int = 0) -> Batch:
        """As Window.get."""
        target = _buffer(out, "out", writable=True)
        self._add("rwBatchGet", (*_range(target), self._peer(peer), _offset(offset)), target)
        return self

    def signal(self, peer: int, slot: int = 0, count: int = 1) -> Batch:
        """As Window.signal."""
        place = (self._peer(peer), self._window._slot(slot), _count(count))
        self._add("rwBatchSignal", place, None)
        return self

    def wait_signal(self, peer: int, slot: int = 0, count: int = 1) -> Batch:
        """As Window.wait_signal."""
        place = (self._peer(peer), self._window._slot(slot), _count(count))
        self._add("rwBatchWaitSignal", place, None)
        return self

    def flush(self, peer: int) -> Batch:
        """As Window.flush, of one peer."""
        self._add("rwBatchFlush", (self._peer(peer),), None)
        return self

    def launch(self, *, blocking: bool = True, stream: Stream = None) -> Optional[Handle[None]]:
        """Starts all operations; returns when they are done, or a `Handle` at once.

        With `stream` it enqueues them and returns; it may be launched there again at once.

        Raises:
            UsageError: it was launched before and has not ended.
        """
        self._window._open()
        if stream is None and self._of_gpu is not None:
            self._window._require_host(self._of_gpu, "batch")
        return Window._start("rwBatchLaunch", (self._handle,), None, self, blocking, stream)

    def arm(self, stream: Stream) -> Trigger:
        """Enqueues it, to begin when something on the window's GPU has stored the trigger.

        That is a kernel on another stream: `ropewalk::device::launch` of device.cuh, or any other
        that stores `value` at `address` after what the batch sends. Until then the stream stands
        still, however long that takes, unless the communicator breaks or ends. Each call gives a
        trigger for one launch.
        """
        self._window._open()
        trigger = DeviceTrigger()
        check(library().rwBatchArm(self._handle, stream_handle(stream), ctypes.byref(trigger)))
        return Trigger(int(trigger.word), int(trigger.value))

    def __del__(self) -> None:
        """Frees it. While it is launched its handle keeps it."""
        if self._handle and self._process == os.getpid():
            library().rwBatchFree(self._handle)

    def _peer(self, value: int) -> int:
        return self._window._rank_number(value, "peer")

    def _add(self, function: str, place: tuple[Any, ...], keep: Optional[Buffer]) -> None:
        check(getattr(library(), function)(self._handle, *place, self._window._open()))
        self._keep.append(keep)
        if keep is not None and keep.device is not None:
            self._of_gpu = keep


def _is_size(value: Any) -> bool:
    """Whether it is a number of bytes, not an array; numpy.int64 has both protocols."""
    return hasattr(value, "__index__") and not getattr(value, "shape", None)


def _range(buffer: Buffer) -> tuple[Optional[int], int]:
    return (buffer.address if buffer.nbytes else None), buffer.nbytes


def _offset(value: int) -> int:
    return integer(value, "offset", 0, _MOST_OFFSET)


def _count(value: int) -> int:
    return integer(value, "count", 1, _MOST_COUNT)
