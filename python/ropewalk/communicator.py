"""Communicators: the ranks of one job, and their operations."""

from __future__ import annotations

import contextlib
import ctypes
import os
import weakref
from types import TracebackType
from typing import Any, Callable, Literal, Optional, TypeVar, Union, overload

from ropewalk import groups, interrupts, request
from ropewalk._library import (
    Comm,
    TopologyHandle,
    check,
    check_communicator,
    json_of,
    library,
    made,
)
from ropewalk.arguments import integer, text_or_none
from ropewalk.arguments import text as encoded
from ropewalk.arrays import UNKNOWN_DEVICE, Buffer, buffer_of
from ropewalk.device_arrays import Stream, stream_handle
from ropewalk.errors import INTERRUPTED, INVALID_USAGE, SUCCESS, ArgumentError, UsageError
from ropewalk.operators import Operator, PreMulSum, number_of
from ropewalk.process_bound import ProcessBound
from ropewalk.queues import Queues
from ropewalk.registration import Registration
from ropewalk.request import Handle
from ropewalk.topology import Topology
from ropewalk.window import Window

Array = TypeVar("Array")


def _place(device: Optional[int]) -> str:
    if device is None:
        return "in host memory"
    return "on a GPU" if device == UNKNOWN_DEVICE else f"on GPU {device}"


def _destroy(address: int) -> None:
    """Leaves in order: at the end of the program, or when the object is deleted."""
    if library().rwCommDestroy(address) == INTERRUPTED:
        interrupts.reraise()


class Communicator(ProcessBound):
    """An ordered set of ranks that run collectives together. Made by `ropewalk.init`.

    Arrays may be NumPy arrays, PyTorch tensors, CuPy arrays, or anything with the buffer, DLPack,
    `__array_interface__` or `__cuda_array_interface__` protocol. They are used where they lie,
    never copied, must be contiguous, and any shape will do: counts are in elements. All ranks of
    an operation must call it with equal element type, count, operator and root.

    What hands over a copy of its elements (lists, pandas' Series, lazily conjugated tensors), or is
    not contiguous or read-only, is refused where the operation writes it: the result would be lost.
    Pass a copy as `array`, and use what the operation returns:
    `total = comm.all_reduce(numpy.ascontiguousarray(array))`.

    A NumPy scalar (`numpy.float64(1)`, `array.sum()`) is an array of one element, and never
    changes: an operation returns its result as a scalar of the same type. That comes too late in a
    `group`, which takes scalars to be written with `blocking=False` alone. As `out` it is refused.

    Element types: all of NCCL's (8, 32 and 64-bit integers, float16, float32, float64, bfloat16,
    float8 e4m3 and e5m2), with all operators. complex64 and complex128 have "sum" and "avg". These,
    bool, int16, uint16, and elements of any other type of a fixed size that hold no references
    (dates, texts of a fixed length, records) can be moved. Ranks that give different types are told
    so by name; those other types count as so many bytes, and only the number of bytes is compared.

    Every operation takes `blocking`. True waits and returns the array that holds the result. False
    starts the operation and returns a `Handle` at once, whose `wait` returns that array; until then
    the arrays must not be touched. Operations run in the order in which they were started.

    Arrays on GPUs need a communicator with a GPU (`device`), and all arrays of an operation are on
    that GPU. The operation is enqueued on `stream` and runs there, as the frameworks' own
    operations do: with `blocking` True the call returns when it is enqueued, and what is enqueued
    on that stream later sees the result; with False the handle's `wait` returns when it has run. A
    stream is an int (cudaStream_t) or a stream of PyTorch or CuPy; None is the array's framework's
    current stream. Arrays must live until the operation has run; the frameworks see to that for
    arrays of the stream's own. What goes wrong on the GPU is raised by the next call, `wait` or
    `check`.

    Every operation may raise:
        ArgumentError: an array, count, type, operator, root or peer that cannot be right. Nothing
            was done, and the communicator stays whole.
        UsageError: ranks called differently; the text names the rank and the field.
        PeerLostError: another rank died, left or aborted.
        TimeoutError: the deadline (setting TIMEOUT) passed.

    After the last three the communicator is broken: every later call raises the same, and what is
    left is `abort`.

    Signals in the main thread: Ctrl-C ends an operation, or `ropewalk.init`, that waits for other
    ranks, with KeyboardInterrupt within 0.2 s; so does what any other signal's handler raises. The
    communicator is broken then, and the other ranks are told. A handler that raises nothing runs
    meanwhile, and the operation goes on. A handler must not use a communicator: UsageError.

    Threads: one at a time, another one gets UsageError; `abort` and `check` by any thread at any
    time. As a context manager a communicator is finalized at the end of the block, or aborted when
    the block ends by an exception.

    Processes: a communicator belongs to the process that joined. It cannot be pickled or copied. In
    a forked child (os.fork, multiprocessing, a DataLoader's workers) every use of it raises
    UsageError; the child's end, and the end of a block in it, leave the parent's communicator
    alone. The child may join jobs of its own.
    """

    def __init__(self, handle: Comm) -> None:
        """Takes over a C communicator. Use `ropewalk.init`."""
        self._address: Optional[int] = handle.value
        self._device: Optional[int] = None
        self._last_stream: Stream = None
        self._registered: set[Registration] = set()  # whose arrays must stay
        rank, size = ctypes.c_int(), ctypes.c_int()
        check(library().rwCommUserRank(handle, ctypes.byref(rank)))
        check(library().rwCommCount(handle, ctypes.byref(size)))
        self._rank, self._size = rank.value, size.value
        self._process = os.getpid()
        self._destroy = weakref.finalize(self, _destroy, handle.value or 0)

    # ---- what it is

    @property
    def rank(self) -> int:
        """This rank's number, from 0."""
        return self._rank

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self._size

    @property
    def device(self) -> Optional[int]:
        """The GPU of this rank, as CUDA numbers it; None: only host memory."""
        return self._device

    @property
    def device_memory(self) -> int:
        """Bytes of the GPU's memory that the communicator itself holds."""
        held = ctypes.c_size_t()
        check(library().rwCommDeviceMemory(self.c_handle, ctypes.byref(held)))
        return held.value

    def attach(self, device: int) -> None:
        """Gives this rank a GPU, as `ropewalk.init(device=...)` does. All ranks must call.

        Several ranks of one thread call within a `group`.

        Args:
            device: the GPU, as CUDA numbers it.

        Raises:
            UsageError: there are no GPUs here, the ranks' GPUs cannot reach each other, or this
                rank has one already.
        """
        number = integer(device, "device", 0)

        def note() -> None:
            self._device = number

        self._call(lambda: check(library().rwCommAttachDevice(self.c_handle, number)), note)

    @property
    def closed(self) -> bool:
        """Whether it was finalized or aborted."""
        return self._address is None

    @property
    def elsewhere(self) -> bool:
        """Whether this is a forked child's copy, which cannot be used."""
        return self._process != os.getpid()

    @property
    def c_handle(self) -> int:
        """The rwComm_t. Raises UsageError when the communicator is closed."""
        if self._address is None:
            raise UsageError("the communicator was finalized or aborted")
        return self._address

    def __repr__(self) -> str:
        """Rank and size."""
        state = ", closed" if self.closed else ""
        if self.elsewhere:
            state = f", of process {self._process}"
        return f"Communicator(rank={self._rank}, size={self._size}{state})"

    # ---- its end

    def finalize(self) -> None:
        """Waits for this rank's operations, notifies the others that it leaves, and closes.

        Raises:
            UsageError: another thread is in a call. Nothing was done.
        """
        address, self._address = self.c_handle, None
        finalized = library().rwCommFinalize(address)
        if finalized == INVALID_USAGE:
            broken = ctypes.c_int()
            asked = library().rwCommGetAsyncError(address, ctypes.byref(broken))
            if asked != SUCCESS or broken.value == SUCCESS:  # refused
                self._address = address
                check(finalized)
        self._registered.clear()
        self._destroy.detach()
        try:
            check(finalized)
        finally:
            library().rwCommDestroy(address)

    def abort(self) -> None:
        """Ends every operation of this rank with an error, notifies the others, and closes."""
        address, self._address = self.c_handle, None
        aborted = library().rwCommAbort(address)
        if aborted == INVALID_USAGE:  # refused
            self._address = address
        else:
            self._registered.clear()
            self._destroy.detach()
        check(aborted)

    def check(self) -> None:
        """Raises the error that broke the communicator, if one did. Does not wait."""
        found = ctypes.c_int()
        check(library().rwCommGetAsyncError(self.c_handle, ctypes.byref(found)))
        check_communicator(found.value, self.c_handle)

    def __enter__(self) -> Communicator:
        """Itself."""
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        """Finalizes; aborts after an exception, so that the other ranks do not wait."""
        if self.closed or self.elsewhere:
            return
        if kind is None:
            self.finalize()
        else:
            self.abort()

    # ---- collectives

    @overload
    def all_reduce(
        self,
        array: Array,
        op: Operator = ...,
        *,
        out: Optional[Array] = ...,
        stream: Stream = ...,
        blocking: Literal[True] = ...,
    ) -> Array: ...
    @overload
    def all_reduce(
        self,
        array: Array,
        op: Operator = ...,
        *,
        out: Optional[Array] = ...,
        stream: Stream = ...,
        blocking: Literal[False],
    ) -> Handle[Array]: ...
    def all_reduce(
        self,
        array: Array,
        op: Operator = "sum",
        *,
        out: Optional[Array] = None,
        stream: Stream = None,
        blocking: bool = True,
    ) -> Union[Array, Handle[Array]]:
        """Combines `array` of all ranks; every rank gets the result.

        Args:
            array: `count` elements, the same on all ranks. Overwritten when there is no `out`.
            op: "sum", "prod", "max", "min", "avg", or what `pre_mul_sum` returned.
            out: `count` elements for the result.
            stream: see the class.
            blocking: see the class.
        """
        target = array if out is None else out
        send, receive = self._pair(array, target, 1, 1, stream)
        number = number_of(op, self, send.type)
        return self._start(
            "rwAllReduce",
            (send.address, receive.address, *self._elements(send), number),
            target,
            (send, receive),
            blocking,
            stream,
        )

    @overload
    def broadcast(
        self,
        array: Array,
        root: int = ...,
        *,
        out: Optional[Array] = ...,
        stream: Stream = ...,
        blocking: Literal[True] = ...,
    ) -> Array: ...
    @overload
    def broadcast(
        self,
        array: Array,
        root: int = ...,
        *,
        out: Optional[Array] = ...,
        stream: Stream = ...,
        blocking: Literal[False],
    ) -> Handle[Array]: ...
    def broadcast(
        self,
        array: Array,
        root: int = 0,
        *,
        out: Optional[Array] = None,
        stream: Stream = None,
        blocking: bool = True,
    ) -> Union[Array, Handle[Array]]:
        """Every rank gets `array` of `root`.

        Args:
            array: `count` elements: what `root` sends. Without `out` it is overwritten on the other
                ranks; with `out` it is not read there.
            root: the sending rank.
            out: `count` elements for the result.
            stream: see the class.
            blocking: see the class.
        """
        root = self._rank_number(root, "root")
        target = array if out is None else out
        send, receive = self._pair(
            array, target, 1, 1, stream, writes=self._rank != root or out is not None
        )
        return self._start(
            "rwBroadcast",
            (send.address, receive.address, *self._elements(receive), root),
            target,
            (send, receive),
            blocking,
            stream,
        )

    @overload
    def reduce(
        self,
        array: Array,
        op: Operator = ...,
        root: int = ...,
        *,
        out: Optional[Array] = ...,
        stream: Stream = ...,
        blocking: Literal[True] = ...,
    ) -> Array: ...
    @overload
    def reduce(
        self,
        array: Array,
        op: Operator = ...,
        root: int = ...,
        *,
        out: Optional[Array] = ...,
        stream: Stream = ...,
        blocking: Literal[False],
    ) -> Handle[Array]: ...
    def reduce(
        self,
        array: Array,
        op: Operator = "sum",
        root: int = 0,
        *,
        out: Optional[Array] = None,
        stream: Stream = None,
        blocking: bool = True,
    ) -> Union[Array, Handle[Array]]:
        """Combines `array` of all ranks; `root` gets the result.

        Args:
            array: `count` elements. Overwritten on `root` when there is no `out`; kept on the other
                ranks.
            op: as in `all_reduce`.
            root: the rank that gets the result.
            out: `count` elements for the result; the other ranks may leave it out.
            stream: see the class.
            blocking: see the class.
        """
        root = self._rank_number(root, "root")
        target = array if out is None else out
        is_root = self._rank == root
        send, receive = self._pair(
            array, target if is_root else array, 1, 1, stream, writes=is_root
        )
        number = number_of(op, self, send.type)
        return self._start(
            "rwReduce",
            (
                send.address,
                receive.address if is_root else None,
                *self._elements(send),
                number,
                root,
            ),
            target,
            (send, receive),
            blocking,
            stream,
        )

    @overload
    def all_gather(
        self,
        array: Array,
        *,
        out: Optional[Array] = ...,
        stream: Stream = ...,
        blocking: Literal[True] = ...,
    ) -> Array: ...
    @overload
    def all_gather(
        self,
        array: Array,
        *,
        out: Optional[Array] = ...,
        stream: Stream = ...,
        blocking: Literal[False],
    ) -> Handle[Array]: ...
    def all_gather(
        self,
        array: Array,
        *,
        out: Optional[Array] = None,
        stream: Stream = None,
        blocking: bool = True,
    ) -> Union[Array, Handle[Array]]:
        """Every rank gets the blocks of all ranks, in rank order.

        Args:
            array: this rank's block of `count` elements. Without `out`: the whole, `size * count`
                elements, with this rank's block at index `rank`.
            out: `size * count` elements for the result.
            stream: see the class.
            blocking: see the class.
        """
        target = array if out is None else out
        if out is None:
            receive = self._buffer(array, "array", writable=True, stream=stream)
            count = self._block(receive, "array")
            send_address = receive.address + self._rank * count * receive.type.size
            send = receive
        else:
            send, receive = self._pair(array, out, 1, self._size, stream)
            count, send_address = send.count, send.address
        return self._start(
            "rwAllGather",
            (send_address, receive.address, *self._elements(receive, count)),
            target,
            (send, receive),
            blocking,
            stream,
        )

    @overload
    def reduce_scatter(
        self,
        array: Array,
        op: Operator = ...,
        *,
        out: Optional[Array] = ...,
        stream: Stream = ...,
        blocking: Literal[True] = ...,
    ) -> Array: ...
    @overload
    def reduce_scatter(
        self,
        array: Array,
        op: Operator = ...,
        *,
        out: Optional[Array] = ...,
        stream: Stream = ...,
        blocking: Literal[False],
    ) -> Handle[Array]: ...
    def reduce_scatter(
        self,
        array: Array,
        op: Operator = "sum",
        *,
        out: Optional[Array] = None,
        stream: Stream = None,
        blocking: bool = True,
    ) -> Union[Array, Handle[Array]]:
        """Combines `array` of all ranks; each rank gets its own block of the result.

        Args:
            array: `size * count` elements. Without `out`, the result overwrites this rank's block
                of it (the other blocks keep no defined value).
            op: as in `all_reduce`.
            out: `count` elements for the result.
            stream: see the class.
            blocking: see the class.
        """
        target = array if out is None else out
        if out is None:
            send = self._buffer(array, "array", writable=True, stream=stream)
            count = self._block(send, "array")
            address = send.address + self._rank * count * send.type.size
            receive = send
        else:
            send, receive = self._pair(array, out, self._size, 1, stream)
            count, address = receive.count, receive.address
        number = number_of(op, self, send.type)
        return self._start(
            "rwReduceScatter",
            (send.address, address, *self._elements(send, count), number),
            target,
            (send, receive),
            blocking,
            stream,
        )

    @overload
    def all_to_all(
        self, array: Any, out: Array, *, stream: Stream = ..., blocking: Literal[True] = ...
    ) -> Array: ...
    @overload
    def all_to_all(
        self, array: Any, out: Array, *, stream: Stream = ..., blocking: Literal[False]
    ) -> Handle[Array]: ...
    def all_to_all(
        self, array: Any, out: Array, *, stream: Stream = None, blocking: bool = True
    ) -> Union[Array, Handle[Array]]:
        """Block j of `array` goes to rank j, which puts it into block i (the sender) of its `out`.

        Args:
            array: `size * count` elements.
            out: `size * count` elements; not the same memory, save that it may be `array` itself on
                a GPU, where the input is copied first.
            stream: see the class.
            blocking: see the class.
        """
        send, receive = self._pair(array, out, 1, 1, stream)
        count = self._block(send, "array")
        return self._start(
            "rwAllToAll",
            (send.address, receive.address, *self._elements(send, count)),
            out,
            (send, receive),
            blocking,
            stream,
        )

    @overload
    def gather(
        self,
        array: Array,
        root: int = ...,
        *,
        out: Optional[Array] = ...,
        stream: Stream = ...,
        blocking: Literal[True] = ...,
    ) -> Array: ...
    @overload
    def gather(
        self,
        array: Array,
        root: int = ...,
        *,
        out: Optional[Array] = ...,
        stream: Stream = ...,
        blocking: Literal[False],
    ) -> Handle[Array]: ...
    def gather(
        self,
        array: Array,
        root: int = 0,
        *,
        out: Optional[Array] = None,
        stream: Stream = None,
        blocking: bool = True,
    ) -> Union[Array, Handle[Array]]:
        """`root` gets the blocks of all ranks, in rank order.

        Args:
            array: this rank's block of `count` elements. On `root` without `out`: the whole,
                `size * count` elements, with its own block at index `rank`.
            root: the rank that gets the blocks.
            out: `size * count` elements for the result on `root`; the other ranks leave it out.
            stream: see the class.
            blocking: see the class.
        """
        root = self._rank_number(root, "root")
        if self._rank != root:
            send = self._buffer(array, "array", writable=False, stream=stream)
            arguments = (send.address, None, *self._elements(send), root)
            return self._start("rwGather", arguments, array, (send,), blocking, stream)
        target = array if out is None else out
        if out is None:
            receive = self._buffer(array, "array", writable=True, stream=stream)
            count = self._block(receive, "array")
            send_address = receive.address + root * count * receive.type.size
            send = receive
        else:
            send, receive = self._pair(array, out, 1, self._size, stream)
            count, send_address = send.count, send.address
        return self._start(
            "rwGather",
            (send_address, receive.address, *self._elements(receive, count), root),
            target,
            (send, receive),
            blocking,
            stream,
        )

    @overload
    def scatter(
        self,
        array: Array,
        root: int = ...,
        *,
        out: Optional[Array] = ...,
        stream: Stream = ...,
        blocking: Literal[True] = ...,
    ) -> Array: ...
    @overload
    def scatter(
        self,
        array: Array,
        root: int = ...,
        *,
        out: Optional[Array] = ...,
        stream: Stream = ...,
        blocking: Literal[False],
    ) -> Handle[Array]: ...
    def scatter(
        self,
        array: Array,
        root: int = 0,
        *,
        out: Optional[Array] = None,
        stream: Stream = None,
        blocking: bool = True,
    ) -> Union[Array, Handle[Array]]:
        """Each rank gets its own block of `array` of `root`.

        Args:
            array: on `root`, `size * count` elements; without `out`, its own block stays in place.
                On the other ranks, `count` elements for the result when there is no `out`, else not
                used (None is fine).
            root: the sending rank.
            out: `count` elements for the result.
            stream: see the class.
            blocking: see the class.
        """
        root = self._rank_number(root, "root")
        target = array if out is None else out
        if self._rank != root:
            receive = self._buffer(
                target, "array" if out is None else "out", writable=True, stream=stream
            )
            arguments = (None, receive.address, *self._elements(receive), root)
            return self._start("rwScatter", arguments, target, (receive,), blocking, stream)
        if out is None:
            send = self._buffer(array, "array", writable=False, stream=stream)
            count = self._block(send, "array")
            address = send.address + root * count * send.type.size
            receive = send
        else:
            send, receive = self._pair(array, out, self._size, 1, stream)
            count, address = receive.count, receive.address
        return self._start(
            "rwScatter",
            (send.address, address, *self._elements(send, count), root),
            target,
            (send, receive),
            blocking,
            stream,
        )

    @overload
    def sendrecv(
        self, array: Any, out: Array, *, stream: Stream = ..., blocking: Literal[True] = ...
    ) -> Array: ...
    @overload
    def sendrecv(
        self, array: Any, out: Array, *, stream: Stream = ..., blocking: Literal[False]
    ) -> Handle[Array]: ...
    def sendrecv(
        self, array: Any, out: Array, *, stream: Stream = None, blocking: bool = True
    ) -> Union[Array, Handle[Array]]:
        """Every rank sends to the next rank and receives from the previous one, in a circle.

        Args:
            array: `count` elements to send.
            out: `count` elements to receive; not the same memory.
            stream: see the class.
            blocking: see the class.
        """
        send, receive = self._pair(array, out, 1, 1, stream)
        return self._start(
            "rwSendRecv",
            (send.address, receive.address, *self._elements(send)),
            out,
            (send, receive),
            blocking,
            stream,
        )

    def barrier(self) -> None:
        """Returns when every rank has called."""
        self._call(lambda: check(library().rwBarrier(self.c_handle)))

    # ---- point to point

    @overload
    def send(
        self, array: Array, peer: int, *, stream: Stream = ..., blocking: Literal[True] = ...
    ) -> Array: ...
    @overload
    def send(
        self, array: Array, peer: int, *, stream: Stream = ..., blocking: Literal[False]
    ) -> Handle[Array]: ...
    def send(
        self, array: Array, peer: int, *, stream: Stream = None, blocking: bool = True
    ) -> Union[Array, Handle[Array]]:
        """Sends `array` to rank `peer`, which must `recv` as many elements of the same type.

        Sends and receives between two ranks match in order. Exchanges belong into a `group`.
        """
        send = self._buffer(array, "array", writable=False, stream=stream)
        arguments = (send.address, *self._elements(send), self._rank_number(peer, "peer"))
        return self._start("rwSend", arguments, array, (send,), blocking, stream)

    @overload
    def recv(
        self, array: Array, peer: int, *, stream: Stream = ..., blocking: Literal[True] = ...
    ) -> Array: ...
    @overload
    def recv(
        self, array: Array, peer: int, *, stream: Stream = ..., blocking: Literal[False]
    ) -> Handle[Array]: ...
    def recv(
        self, array: Array, peer: int, *, stream: Stream = None, blocking: bool = True
    ) -> Union[Array, Handle[Array]]:
        """Receives from rank `peer` into `array`. See `send`."""
        receive = self._buffer(array, "array", writable=True, stream=stream)
        arguments = (receive.address, *self._elements(receive), self._rank_number(peer, "peer"))
        return self._start("rwRecv", arguments, array, (receive,), blocking, stream)

    # ---- more

    def split(self, color: Optional[int], key: int = 0) -> Optional[Communicator]:
        """A new communicator of the ranks that give the same `color`. All ranks must call.

        It works on the same GPUs as this one.

        Args:
            color: 0 or more; None takes part and gets None.
            key: orders the ranks of the new communicator; equal keys keep the order of ranks.
        """
        if isinstance(color, bool):  # of two, as good as numbers
            color = int(color)
        if color is not None and integer(color, "color") < 0:
            raise ArgumentError(f"color {color} is negative; None means no communicator")
        made = Comm()
        number = -1 if color is None else integer(color, "color")
        order = integer(key, "key")
        check(library().rwCommSplit(self.c_handle, number, order, ctypes.byref(made)))
        if not made:
            return None
        smaller = Communicator(made)
        if self._device is not None:
            smaller.attach(self._device)
        return smaller

    def register(self, array: Any, symmetric: bool = False) -> Registration:
        """Lets the GPUs of other processes read `array` where it lies. All ranks must call.

        Without it, long data for GPUs of other processes is copied into memory of theirs first.
        Operations look by themselves whether their arrays lie within registered ones; docs/gpu.md
        says which of them gain. Ranks register in the same order, and sizes may differ. Several
        ranks of one thread call within a `group`.

        Memory that did not come from cudaMalloc (PyTorch's expandable segments, pools) is accepted
        and stays staged.

        Args:
            array: on this rank's GPU.
            symmetric: all ranks promise that what they pass to one operation lies equally far
                behind the start of each one's array, and that none uses it once one has closed it.
                Then copy engines may write outputs there (setting COPY_ENGINES).

        Raises:
            ArgumentError: the array of a rank is not on its GPU, or is empty. All ranks get it,
                with the rank's number, and nothing is registered.
            UsageError: this communicator has no GPU; memory of the host needs no registration.
        """
        buffer = self._buffer(array, "array", writable=False, stream=None)
        comm = self.c_handle
        made = Registration(self, buffer)

        def run() -> None:
            functions = library()
            call = functions.rwCommWindowRegister
            if symmetric:
                call = functions.rwCommWindowRegisterSymmetric
            check(call(comm, buffer.address, buffer.nbytes, made._slot()))

        self._call(run, lambda: self._registered.add(made))
        return made

    def window(
        self, array_or_nbytes: Any, slots: int = 1, device: Union[int, str, None] = None
    ) -> Window:
        """Makes a window that the other ranks put to and get from. All ranks must call.

        In the same order; several ranks of one thread call within a `group`. All in the host's
        memory, or all in that of GPUs.

        Args:
            array_or_nbytes: this rank's part: so many bytes of zeroed shared memory
                (`Window.memory`), into which ranks of this host store directly; or an array, which
                must stay as it is until the window is closed. Sizes may differ, and be 0.
            slots: how many signal counters each rank has for each source; the same on all ranks.
            device: for a number of bytes: in the memory of this GPU ("cuda", "cuda:1", 1); "cuda"
                is the communicator's GPU, or the first one. None: the host's.

        Raises:
            ArgumentError, UsageError, SystemCallError, CudaError: what a rank gave cannot be right,
                slots differ, or a rank has not enough memory. All ranks get it, with the rank's
                number.
        """
        return Window(self, array_or_nbytes, slots, device)

    def queues(self, nbytes: int, slots: int = 1, device: Union[int, str, None] = "cuda") -> Queues:
        """Makes queues for messages that streams send. All ranks must call, as for `window`.

        Args:
            nbytes: so much may be sent to a peer on a slot before it has received any, from 1 to
                16 MiB; the same on all ranks. A queue takes 2.7 to 5.4 times as much memory.
            slots: queues from each rank to each; the same on all ranks.
            device: the GPU: "cuda", "cuda:1", 1; "cuda" is the communicator's, or the first one.

        Raises:
            ArgumentError, UsageError, CudaError: as `window`.
        """
        return Queues(self, nbytes, slots, device)

    def _forget(self, registration: Registration) -> None:
        self._registered.discard(registration)

    def group(self) -> contextlib.AbstractContextManager[None]:
        """As `ropewalk.group`."""
        return groups.group()

    def pre_mul_sum(self, scalar: float, data_type: str) -> PreMulSum:
        """An operator that multiplies this rank's input by `scalar` and sums the products.

        Args:
            scalar: this rank's factor; ranks may differ.
            data_type: "float32" and so on: the element type that it will be used for.
        """
        return PreMulSum(self, scalar, data_type)

    def use_schedule(self, text: Optional[str]) -> None:
        """Runs this schedule for its collective from now on; all ranks pass the same text.

        On GPUs as well, each channel repeated over as many blocks as a call's size deserves. CUDA
        graphs that were captured before go on with what they captured.

        Args:
            text: the text form (`ropewalk.schedule.make`), which the checker must accept. None goes
                back to the tuner's choice for all collectives.
        """
        raw = text_or_none(text, "text")
        check(library().rwCommUseSchedule(self.c_handle, raw))

    def set_timeout(self, timeout: Optional[float]) -> None:
        """How long operations that are started later may stand still. Ranks may differ.

        Args:
            timeout: seconds; the setting TIMEOUT rules where it is shorter. None: TIMEOUT alone.
                math.inf: for ever.

        Raises:
            ArgumentError: `timeout` is not a number of seconds.
        """
        # 0 is the setting alone; less than a microsecond is one.
        microseconds = 0 if timeout is None else request.microseconds(timeout) or 1
        check(library().rwCommSetTimeout(self.c_handle, microseconds))

    def explain(self, operation: str, size: int, root: int = 0) -> dict[str, Any]:
        """Why an operation runs by the algorithm that it does.

        On the GPU's memory where the communicator has a GPU, else on the host's.
        Local: the other ranks need not call.

        Args:
            operation: "all_reduce" and so on.
            size: bytes, as `ropewalk bench -b` counts them: of the larger of a rank's two buffers.
            root: of rooted operations.

        Returns:
            operation, bytes, root, ranks, hosts, network (the transport between hosts, or None),
            network_slots ("GPU memory" or "pinned memory": where this rank's slots of links between
            GPUs of several hosts are that threads move; else None),
            nic_gbps (what each NIC of a host that is used carries, GB/s; [] where it was not
            measured), machine (name, origin, fingerprint: see `topology`), candidates (the cheapest
            first: algorithm, kind ("shape" or "plan"), channels, nic_rule, chunk_bytes, by_address,
            predicted_us, algbw_gbps), memory ("host" or "GPU"), chosen, protocol, channels and
            nic_rule (of the chosen one), chosen_by ("cost model", "setting ALGORITHM" or
            "rwCommUseSchedule"), copy_engines (whether copy engines make such a call instead, with
            its output in a symmetric window: setting COPY_ENGINES).

            nic_rule: where each host has several NICs, how channels are laid on them: "balanced"
            (the data by their rates) or "least-used" (the NIC with the fewest channels takes the
            next one); else None. channel_nics: of the chosen one's channels, to the first rank of
            another host: channel, nic (this rank's), share (of the data) and distance (of both
            ends' NICs from their ranks; 0: near, or not known).

            planning: what became of plans that take long to make (setting PLANNING): None, or
            state ("under way", "made", "in use", "failed"), algorithms (what they may add), later
            (what will be chosen, where state is "made"), from_call (the communicator's first call
            with them, once the ranks have agreed on it).

            chunks: on host memory (else None) bytes (of the next such call's chunks), start_bytes
            (as the cost model chose), state ("fixed"; where the chunk size is tuned, setting
            ADAPT_CHUNKS: "measuring" or "settled" on one rank, else "follows") and gain
            (where settled: the time at first over the time now; else None).

            copies: on host memory, where calls of that size can go by address (one copy) and
            through slots (two) and try both (setting ADAPT_COPIES; else None): by_address (the next
            such call), chosen_by_address (by the cost model), decides (whether this rank does, for
            all), and, on that rank, data_in_caches and data_from_memory: settled (the trial is
            over) and gain (the time of the form that is not used over that of the used one; 1
            before).

            Where each rank has a GPU of its own on the machine (GPUs that were found, or settings
            TOPOLOGY, EMULATE): bound (algbw_gbps, and in words why), algbw_gbps of each candidate
            for long messages, and limiting_links of the chosen one (link, type, capacity, load);
            else None and [].
        """
        found: dict[str, Any] = json_of(
            library().rwCommExplain,
            self.c_handle,
            encoded(operation, "operation"),
            integer(size, "size", 0, 2**63 - 1),
            integer(root, "root"),
        )
        return found

    def call_records(self) -> dict[str, Any]:
        """What this communicator was last asked to do, and when (settings TRACE, TRACE_RECORDS).

        communicator, rank, ranks, host, process, written_ns, begun (operations so far), failure
        (None, or why it is broken) and records, the oldest first: id, call (the number of a
        collective, the same on all ranks; None of a message), operation, count, type, op, root,
        peer, algorithm, chunk_bytes (where it is tuned, else None), memory ("host", "GPU"), state
        ("scheduled", "started", "completed"), scheduled_ns, started_ns and completed_ns
        (nanoseconds since 1970; None: not yet), timed (False: of this operation on a GPU
        scheduled_ns alone is known). Also links: what this rank has sent, to (a rank), over (a kind
        of link) and bytes. Local. Any thread, also while another one is in an operation of this
        communicator, and from within a signal's handler.
        """
        report: dict[str, Any] = json_of(library().rwCommCallRecords, self.c_handle)
        return report

    @property
    def emulation(self) -> Optional[dict[str, Any]]:
        """The machine that the setting EMULATE names, as far as this communicator is on it.

        machine (its name), gpus (their ids, by rank) and slowdown (how many times its links are
        slowed); None on a machine that is there.
        """
        found: Optional[dict[str, Any]] = json_of(library().rwCommEmulation, self.c_handle)
        return found

    @property
    def topology(self) -> Topology:
        """The machine that the ranks run on, all hosts as one: equal on all ranks.

        Found while joining, or kept from before, or what the setting TOPOLOGY names. Local.
        """
        return Topology(made(TopologyHandle, library().rwCommTopology, self.c_handle))

    @property
    def node_of_rank(self) -> list[str]:
        """By rank: the id in `topology` of its GPU, else of the NUMA node of its cores. Local."""
        return self._placement()["node_of_rank"]  # type: ignore[no-any-return]

    @property
    def ring_order(self) -> list[int]:
        """The ranks, each near the next one: by host, NUMA node and core. Local."""
        return self._placement()["ring_order"]  # type: ignore[no-any-return]

    def _placement(self) -> dict[str, Any]:
        found: dict[str, Any] = json_of(library().rwCommPlacement, self.c_handle)
        return found

    # ---- common parts

    def _buffer(self, array: Any, name: str, *, writable: bool, stream: Stream) -> Buffer:
        return buffer_of(array, name, writable=writable, stream=stream, device=self._device)

    def _pair(
        self,
        array: Any,
        out: Any,
        send_blocks: int,
        receive_blocks: int,
        stream: Stream,
        *,
        writes: bool = True,
    ) -> tuple[Buffer, Buffer]:
        """Buffers of input and output, of one type, whose counts are as send_ to receive_blocks."""
        if out is array:
            both = self._buffer(array, "array", writable=writes, stream=stream)
            return both, both
        receive = self._buffer(out, "out", writable=writes, stream=stream)
        # The input's framework lets the stream that will run the operation wait for the input.
        on = receive.stream if stream is None else stream
        send = self._buffer(array, "array", writable=False, stream=on)
        if send.device != receive.device:
            raise ArgumentError(
                f"array is {_place(send.device)}, out {_place(receive.device)}; both must be on "
                "one GPU, or in host memory"
            )
        if send.type != receive.type:
            raise ArgumentError(f"array holds {send.type.name}, out holds {receive.type.name}")
        if send.count * receive_blocks != receive.count * send_blocks:
            wanted, rest = divmod(send.count * receive_blocks, send_blocks)
            raise ArgumentError(
                f"array has {send.count} elements and out {receive.count}; "
                + (
                    f"array must be a multiple of {send_blocks} ranks"
                    if rest
                    else f"out must have {wanted}"
                )
            )
        return send, receive

    def _rank_number(self, value: int, name: str) -> int:
        return integer(value, name, 0, self._size - 1)

    @staticmethod
    def _elements(buffer: Buffer, count: Optional[int] = None) -> tuple[int, int]:
        """Count and type for the library; all elements of the buffer, or `count`."""
        elements = buffer.count if count is None else count
        return buffer.type.counted(elements), buffer.type.number

    def _block(self, whole: Buffer, name: str) -> int:
        count, rest = divmod(whole.count, self._size)
        if rest:
            raise ArgumentError(
                f"{name} has {whole.count} elements, which is not a multiple of {self._size} ranks"
            )
        return count

    def _stream_of(self, buffers: tuple[Buffer, ...], stream: Stream) -> Optional[int]:
        """Where to work: an rwStream_t, None for host memory."""
        device = buffers[0].device
        if device is None:
            if stream is not None:
                raise ArgumentError("stream is for arrays on GPUs; these are in host memory")
            return None
        if self._device is None:
            raise UsageError(
                f"array is {_place(device)}, and this communicator has no GPU; "
                'make it by ropewalk.init(device="cuda")'
            )
        if device != self._device:
            raise ArgumentError(
                f"array is {_place(device)}; this communicator works on GPU {self._device}"
            )
        # Kept: the library orders the next operation after this one, also on another stream.
        self._last_stream = buffers[-1].stream if stream is None else stream
        return stream_handle(self._last_stream)

    def _start(
        self,
        function: str,
        arguments: tuple[Any, ...],
        result: Array,
        buffers: tuple[Buffer, ...],
        blocking: bool,
        stream: Stream,
    ) -> Union[Array, Handle[Array]]:
        call = getattr(library(), function)
        comm = self.c_handle
        on = self._stream_of(buffers, stream)

        # `buffers` stay in the closure: in a group the call comes later.
        def run(_keep: Any = buffers) -> None:
            check(call(*arguments, comm, on, None))

        scalar = buffers[-1].scalar
        if scalar is not None and (scalar.given is not result or not scalar.written):
            scalar = None
        if blocking:
            if scalar is not None and groups.is_open():
                raise ArgumentError(
                    "array is a NumPy scalar, whose result is not there before the group ends; "
                    "pass an array of one element, or blocking=False"
                )
            self._call(run)
            return result if scalar is None else scalar.value()
        request.sweep()
        if on is None:
            handle: Handle[Array] = Handle(result, (self, buffers), scalar=scalar)
            self._call(lambda: check(call(*arguments, comm, None, handle._slot())))
            return handle
        marked: Handle[Array] = Handle(result, (self, buffers), at_end=self._check_if_open)

        def mark() -> None:
            check(library().rwStreamMark(self._device, on, marked._slot()))

        self._call(run, mark)
        return marked

    def _check_if_open(self) -> None:
        if not self.closed:
            self.check()

    @staticmethod
    def _call(call: Callable[[], None], then: Optional[Callable[[], None]] = None) -> None:
        if groups.defer(call, then):
            return
        call()
        if then is not None:
            then()
