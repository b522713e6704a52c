"""Sends and receives of a process group: one connection for each direction of each pair of ranks.

A connection is a communicator of two, made when it is first used, on which messages of all tags
come in the order in which they were sent, each in a packet of fixed length: its tag and size, and a
short message itself. A longer one follows. The receiver reads while a receive is posted. A message
for which none is posted yet is kept until one is: so a long message never holds up those behind it.

Messages on GPUs have their packets on the host: a receive is enqueued when its sender has called.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import threading
import time
from collections import defaultdict, deque
from queue import SimpleQueue
from typing import Any, Callable, Optional

import torch

from ropewalk.communicator import Communicator
from ropewalk.errors import Error, PeerLostError, TimeoutError, UsageError
from ropewalk.torch_deadlines import Deadlines
from ropewalk.torch_errors import first_rank, named
from ropewalk.torch_errors import timeout as timeout_error
from ropewalk.torch_joining import Meeting
from ropewalk.torch_tensors import Staged, flat_bytes
from ropewalk.torch_threads import Worker
from ropewalk.torch_work import Work

Tensor = Any  # torch.Tensor; the type checker does not read PyTorch
Key = tuple[int, bool]  # the tag, and whether on a GPU

SENDER, RECEIVER = 0, 1  # ranks of a connection

# Bytes of a packet. Its header's length keeps what follows aligned for every type.
PACKET_BYTES = 1024
HEADER_BYTES = 32
INLINE_BYTES = PACKET_BYTES - HEADER_BYTES


class Packet:
    """A message's header: tag, bytes, whether on a GPU; then the message, if it fits."""

    def __init__(self) -> None:
        """Holds no message yet."""
        self.bytes = torch.zeros(PACKET_BYTES, dtype=torch.uint8)
        self.payload = self.bytes[HEADER_BYTES:]
        self.header = (ctypes.c_int64 * 3).from_address(self.bytes.data_ptr())


class Connection:
    """What both ends of one direction between two ranks have."""

    def __init__(self, messages: Messages, sender: int, receiver: int) -> None:
        """Joins later: the partner may be late."""
        self._messages = messages
        self._ranks = [messages.ranks[sender], messages.ranks[receiver]]
        self._peer = receiver if sender == messages.rank else sender
        self._me = SENDER if sender == messages.rank else RECEIVER
        self._meeting = Meeting(messages.store, f"{sender}>{receiver}", self._me, 2)
        self._closing = False
        self.comm: Optional[Communicator] = None
        self._gpu: Optional[Communicator] = None
        self._limits: dict[bool, float] = {}  # seconds, by whether on a GPU
        self._streams: dict[int, Any] = {}
        self._streams_made = threading.Lock()
        self._packet = Packet()

    def join(self, seconds: float) -> Communicator:
        """The communicator; made within `seconds` when it is not there yet."""
        if self.comm is None:
            self.comm = self._meeting.join(seconds, self._look)
        return self.comm

    def limit(self, comm: Communicator, seconds: float) -> None:
        """Lets operations on `comm`, one of the two here, take `seconds`."""
        if self._limits.get(comm is self._gpu) != seconds:
            comm.set_timeout(seconds)
            self._limits[comm is self._gpu] = seconds

    def _look(self) -> None:
        if self._closing:
            raise UsageError("the process group was destroyed")
        self._messages.look(self._peer)

    def gpu(self, device: int, seconds: float) -> Communicator:
        """One for memory of GPUs. Both ends call, when the first such message comes."""
        if self._gpu is None:
            assert self.comm is not None
            gpu = self.comm.split(0, self._me)
            assert gpu is not None
            gpu.set_timeout(seconds)
            gpu.attach(device)
            self._limits[True] = seconds
            self._gpu = gpu
        return self._gpu

    def stream(self, device: Any) -> Any:
        """Where messages on a GPU run; None for the CPU."""
        if device.type != "cuda":
            return None
        with self._streams_made:
            if device.index not in self._streams:
                self._streams[device.index] = torch.cuda.Stream(device)
            return self._streams[device.index]

    def named(self, error: Exception) -> Exception:
        """`error` with the job's ranks."""
        return named(error, self._ranks)

    def abort(self) -> None:
        """Ends what waits."""
        for comm in (self.comm, self._gpu):
            if comm is not None and not comm.closed:
                comm.abort()

    def finalize(self) -> None:
        """Leaves in order. By the thread that uses the connection."""
        for comm in (self._gpu, self.comm):
            if comm is not None and not comm.closed:
                comm.finalize()


class Outbox(Connection):
    """The sending end. Threads: any."""

    def __init__(self, messages: Messages, receiver: int) -> None:
        """A thread sends, which ends with the group or the program."""
        super().__init__(messages, messages.rank, receiver)
        self._thread = Worker(f"ropewalk send {self._ranks[RECEIVER]}")

    def send(self, tensors: list[Tensor], tag: int, seconds: float) -> Work:
        """Sends after earlier messages."""
        device = tensors[0].device
        stream = self.stream(device)
        work = Work("send", tensors, stream)

        def body() -> None:
            try:
                comm = self.join(seconds)
                for tensor in tensors:
                    self._send(comm, flat_bytes(tensor), tag, seconds)
            except Exception as error:
                raise self.named(error) from None

        if stream is None:
            self._thread.put(functools.partial(work.run, body))
        else:
            before = torch.cuda.current_stream(device).record_event()
            run = functools.partial(work.run, body)
            self._thread.put(functools.partial(_on_stream, stream, before, tensors, run))
        return work

    def _send(self, comm: Communicator, data: Tensor, tag: int, seconds: float) -> None:
        packet, size, on_gpu = self._packet, data.numel(), data.is_cuda
        packet.header[:] = [tag, size, int(on_gpu)]
        inline = not on_gpu and size <= INLINE_BYTES
        if inline:
            ctypes.memmove(packet.payload.data_ptr(), data.data_ptr(), size)
        self.limit(comm, seconds)
        comm.send(packet.bytes, RECEIVER)
        if not inline and size > 0:
            on = comm if not on_gpu else self.gpu(data.device.index, seconds)
            self.limit(on, seconds)
            on.send(data, RECEIVER)

    def close(self) -> None:
        """Sends its queue, and leaves."""
        try:
            self._thread.put(self._leave)
        except RuntimeError:  # the program ends, and the thread has
            self.finalize()
        self._thread.close()

    def _leave(self) -> None:
        with contextlib.suppress(Error):  # nobody waits for it
            self.finalize()


class Posted:
    """A receive that waits for its message, from one rank or from any."""

    def __init__(self, work: Work, tensor: Tensor, before: Any, sources: int, until: float) -> None:
        """`before` is an event after which `tensor` may be written on a GPU."""
        self.work, self.tensor, self.before, self.until = work, tensor, before, until
        self._lock = threading.Lock()
        self._sources = sources
        self._taken = False

    @property
    def taken(self) -> bool:
        """Whether a message, or an error, has it."""
        return self._taken

    def take(self) -> bool:
        """Whether the caller is the first, and ends it."""
        with self._lock:
            taken, self._taken = self._taken, True
            return not taken

    def fail(self, error: Exception) -> None:
        """One source cannot send any more; it ends when no other one can."""
        with self._lock:
            self._sources -= 1
            if self._sources > 0 or self._taken:
                return
            self._taken = True
        self.work.end(error)


class Inbox(Connection):
    """The receiving end. Threads: any."""

    def __init__(self, messages: Messages, source: int) -> None:
        """A thread reads, from the first receive on until close."""
        super().__init__(messages, source, messages.rank)
        self._source = source
        self._changing = threading.Lock()
        self._posted: dict[Key, deque[Posted]] = defaultdict(deque)
        self._kept: dict[Key, deque[Tensor]] = defaultdict(deque)
        self._error: Optional[Exception] = None
        self._watched = math.inf  # when the deadlines are looked at
        self._reading = False  # the thread is, or is about to be, in a receive of the library's
        self._idle = True  # the thread waits to be woken
        self._woken: SimpleQueue[None] = SimpleQueue()
        self._device = -1
        self._thread = threading.Thread(
            target=self._read, name=f"ropewalk receive {self._ranks[SENDER]}", daemon=True
        )
        self._thread.start()

    def post(self, posted: Posted, tag: int) -> None:
        """Receives after the receives of that tag that were posted before."""
        device = posted.tensor.device
        key = (tag, device.type == "cuda")
        with self._changing:
            if key[1]:
                self._device = device.index
            if key in self._kept:
                if posted.take():
                    self._give(posted, self._next_kept(key))
                return
            if self._error is None:
                self._posted[key].append(posted)
                if self._idle:
                    self._idle = False
                    self._woken.put(None)
                if posted.until < self._watched:
                    self._watched = posted.until
                    self._messages.deadlines.add(posted.until, self._expire)
                return
        posted.fail(self._error)

    def _next_kept(self, key: Key) -> Tensor:
        queue = self._kept[key]
        kept = queue.popleft()
        if not queue:
            del self._kept[key]
        return kept

    def close(self) -> None:
        """Leaves; receives that wait end with an error."""
        with self._changing:
            self._closing = True
            reading = self._reading
            self._woken.put(None)
        if reading:
            self.abort()
        self._thread.join(timeout=1.0)

    # ---- the thread

    def _read(self) -> None:
        while self._to_read():
            try:
                self._receive()
            except Exception as error:
                self._fail(self.named(error))
        self._fail(UsageError("the process group was destroyed"))
        self.finalize()

    def _to_read(self) -> bool:
        """Waits until a receive is posted; false when there will be none."""
        while True:
            with self._changing:
                self._reading = False
                if self._closing:
                    return False
                if self._is_awaited():
                    self._reading = self.comm is not None
                    return True
                self._idle = True
            self._woken.get()

    def _is_awaited(self) -> bool:
        """Whether a receive waits; forgets what has found its message elsewhere. Under the lock."""
        for queue in self._posted.values():
            while queue and queue[0].taken:
                queue.popleft()
            if queue:
                return True
        return False

    def _first_deadline(self) -> float:
        """Of what is posted. Under the lock."""
        waiting = (
            posted.until for queue in self._posted.values() for posted in queue if not posted.taken
        )
        return min(waiting, default=math.inf)

    def _receive(self) -> None:
        """Receives a message."""
        if self.comm is None:
            with self._changing:
                left = self._first_deadline() - time.monotonic()
            try:
                self.join(max(left, 0.0))
            except TimeoutError as error:
                self._end_late(str(self.named(error)))
            return
        # For as long as it takes: _expire ends the receives meanwhile. What comes then is kept.
        self.limit(self.comm, math.inf)
        self.comm.recv(self._packet.bytes, SENDER)
        tag, size, on_gpu = self._packet.header
        if on_gpu or size > INLINE_BYTES:
            self._take(self.comm, (tag, bool(on_gpu)), size)
            return
        data = self._packet.payload[:size]
        key = (tag, False)
        with self._changing:
            posted = self._next(key)
            if posted is None:
                self._kept[key].append(data.clone())
        if posted is not None:
            self._give(posted, data)

    def _take(self, comm: Communicator, key: Key, size: int) -> None:
        """Receives the data after a packet, into its destination or to be kept."""
        seconds = self._messages.seconds
        with self._changing:
            posted = self._next(key)
            device = torch.device("cuda", self._device) if key[1] else torch.device("cpu")
        stream = self.stream(device)
        wanted = posted is not None and posted.tensor.nbytes == size
        target = posted.tensor if wanted and posted is not None else None
        before = posted.before if posted is not None else None
        with _Streamed(stream, before, [] if target is None else [target]):
            if target is None:
                target = torch.empty(size, dtype=torch.uint8, device=device)
            staged = Staged(target)
            try:
                on = comm if not key[1] else self.gpu(device.index, seconds)
                if size > 0:
                    self.limit(on, seconds)
                    on.recv(flat_bytes(staged.tensor), SENDER)
            except Exception as error:
                if posted is not None:
                    posted.work.end(self.named(error))
                raise
            staged.put_back()
            if posted is not None:
                if wanted:
                    posted.work.end(source=self._source, stream=stream)
                else:
                    self._end_of_other_size(posted, size)
                return
            with self._changing:  # one may have been posted meanwhile
                posted = self._next(key)
                if posted is None:
                    self._kept[key].append(target)
                else:
                    self._give(posted, target)

    def _next(self, key: Key) -> Optional[Posted]:
        """The receive that takes the next message. Under the lock."""
        queue = self._posted.get(key)
        if queue is None:
            return None
        found = None
        while queue and found is None:
            posted = queue.popleft()
            if posted.take():
                found = posted
        if not queue:
            del self._posted[key]
        return found

    def _give(self, posted: Posted, data: Tensor) -> None:
        """Ends a receive by the bytes of a message that are here."""
        if posted.tensor.nbytes != data.numel():
            self._end_of_other_size(posted, data.numel())
            return
        tensor = posted.tensor.detach()
        stream = self.stream(tensor.device)
        if stream is None:
            if tensor.is_contiguous():
                ctypes.memmove(tensor.data_ptr(), data.data_ptr(), data.numel())
            else:
                tensor.copy_(data.view(tensor.dtype).view(tensor.shape))
            posted.work.end(source=self._source)
            return
        with _Streamed(stream, posted.before, [tensor]):
            tensor.copy_(data.view(tensor.dtype).view(tensor.shape))
            posted.work.end(source=self._source, stream=stream)

    def _end_of_other_size(self, posted: Posted, size: int) -> None:
        posted.work.end(
            self.named(
                UsageError(f"recv of {posted.tensor.nbytes} bytes: rank {SENDER} sent {size}")
            )
        )

    def _expire(self) -> float:
        """Ends the receives whose time has passed; when to look again."""
        self._end_late(f"rank {self._ranks[SENDER]} sent nothing")
        with self._changing:
            self._watched = self._first_deadline()
            return self._watched

    def _end_late(self, why: str) -> None:
        now = time.monotonic()
        with self._changing:
            late = [
                posted
                for queue in self._posted.values()
                for posted in queue
                if posted.until <= now and posted.take()
            ]
        for posted in late:
            posted.work.end(timeout_error(f"recv: {why} within the timeout"))

    def _fail(self, error: Exception) -> None:
        """No message comes any more."""
        with self._changing:
            # A partner that never came may still come; what is broken stays so.
            if self.comm is not None or self._closing:
                self._error = error
            waiting = [posted for queue in self._posted.values() for posted in queue]
            self._posted.clear()
        for posted in waiting:
            posted.fail(error)


class Messages:
    """The sends and receives of a rank. Threads: any."""

    def __init__(
        self,
        store: Any,
        ranks: list[int],
        rank: int,
        seconds: float,
        check: Callable[[], None],
    ) -> None:
        """`ranks` are the global ones; `check` raises when the group is broken."""
        self.store, self.ranks, self.rank, self.seconds = store, ranks, rank, seconds
        self._check = check
        self.deadlines = Deadlines()
        self._making = threading.Lock()
        self._outboxes: dict[int, Outbox] = {}
        self._inboxes: dict[int, Inbox] = {}

    def look(self, peer: int) -> None:
        """Raises when the group knows that `peer` was lost; called while waiting for it."""
        try:
            self._check()
        except PeerLostError as error:
            if first_rank(str(error)) == peer:
                raise named(error, self.ranks) from None

    def send(self, tensors: list[Tensor], destination: int, tag: int) -> Work:
        """Sends to a rank of the group."""
        with self._making:
            if destination not in self._outboxes:
                self._outboxes[destination] = Outbox(self, destination)
            outbox = self._outboxes[destination]
        return outbox.send(tensors, tag, self.seconds)

    def receive(
        self,
        tensors: list[Tensor],
        source: Optional[int],
        tag: int,
        seconds: Optional[float] = None,
    ) -> Work:
        """Receives from a rank of the group; None: from any other one."""
        if len(tensors) != 1:
            raise UsageError(f"recv of {len(tensors)} tensors: one at a time")
        sources = [source] if source is not None else self._others()
        with self._making:
            for each in sources:
                if each not in self._inboxes:
                    self._inboxes[each] = Inbox(self, each)
        device = tensors[0].device
        stream = self._inboxes[sources[0]].stream(device) if sources else None
        work = Work("recv" if source is not None else "recvAnySource", tensors, stream)
        before = None if stream is None else torch.cuda.current_stream(device).record_event()
        until = time.monotonic() + (self.seconds if seconds is None else seconds)
        posted = Posted(work, tensors[0], before, len(sources), until)
        for each in sources:
            self._inboxes[each].post(posted, tag)
        return work

    def _others(self) -> list[int]:
        others = [rank for rank in range(len(self.ranks)) if rank != self.rank]
        if not others:
            raise UsageError("recv from any rank: there is no other one in the group")
        return others

    def abort(self) -> None:
        """Ends all sends and receives with an error."""
        for connection in (*self._outboxes.values(), *self._inboxes.values()):
            connection.abort()

    def close(self) -> None:
        """Leaves the connections."""
        with self._making:
            outboxes, self._outboxes = self._outboxes, {}
            inboxes, self._inboxes = self._inboxes, {}
        for outbox in outboxes.values():
            outbox.close()
        for inbox in inboxes.values():
            inbox.close()
        self.deadlines.close()


class _Streamed:
    """On a GPU: enqueues to `stream`, after `before`. Else no effect."""

    def __init__(self, stream: Any, before: Any, tensors: list[Tensor]) -> None:
        """`tensors` are used on `stream`."""
        self._stream, self._before, self._tensors = stream, before, tensors
        self._guard: Any = None

    def __enter__(self) -> None:
        """Changes the thread's current stream."""
        if self._stream is None:
            return
        if self._before is not None:
            self._stream.wait_event(self._before)
        self._guard = torch.cuda.stream(self._stream)
        self._guard.__enter__()
        for tensor in self._tensors:
            tensor.record_stream(self._stream)  # its memory must not be given away before

    def __exit__(self, *raised: Any) -> None:
        """Changes back."""
        if self._guard is not None:
            self._guard.__exit__(*raised)


def _on_stream(stream: Any, before: Any, tensors: list[Tensor], run: Callable[[], None]) -> None:
    with _Streamed(stream, before, tensors):
        run()
