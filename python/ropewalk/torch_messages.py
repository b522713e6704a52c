"""Sends and receives of a process group: one connection for each direction of each pair of ranks.

A connection is a communicator of two, made when it is first used, on which messages of all tags
come in the order in which they were sent, each after a header with its tag and size. The receiver
reads while a receive is posted. A message for which none is posted yet is kept until one is: so a
long message never holds up those behind it.

Messages on GPUs have their headers on the host: a receive is enqueued when its sender has called.
"""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict, deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Optional

import torch

from ropewalk.communicator import Communicator
from ropewalk.errors import PeerLostError, TimeoutError, UsageError
from ropewalk.request import Handle
from ropewalk.torch_errors import first_rank, named
from ropewalk.torch_errors import timeout as timeout_error
from ropewalk.torch_joining import Meeting
from ropewalk.torch_tensors import Staged, flat_bytes
from ropewalk.torch_work import Work

Tensor = Any  # torch.Tensor; the type checker does not read PyTorch
Key = tuple[int, bool]  # the tag, and whether on a GPU

SENDER, RECEIVER = 0, 1  # ranks of a connection

# How late a receive may end that was posted with a shorter timeout than those before it.
_PATIENCE_SECONDS = 0.25


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
        self._streams: dict[int, Any] = {}
        self._streams_made = threading.Lock()
        self._header = torch.zeros(3, dtype=torch.int64)  # tag, bytes, whether on a GPU

    def join(self, seconds: float) -> Communicator:
        """The communicator; made within `seconds` when it is not there yet."""
        if self.comm is None:
            self.comm = self._meeting.join(seconds, self._look)
            self.comm.set_timeout(math.inf if self._me == RECEIVER else seconds)
        return self.comm

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
        self._thread = ThreadPoolExecutor(1, f"ropewalk send {self._ranks[RECEIVER]}")

    def send(self, tensors: list[Tensor], tag: int, seconds: float) -> Work:
        """Sends after what was sent before."""
        device = tensors[0].device
        stream = self.stream(device)
        work = Work("send", tensors, stream)
        before = None if stream is None else torch.cuda.current_stream(device).record_event()

        def body() -> None:
            try:
                comm = self.join(seconds)
                for tensor in tensors:
                    data = flat_bytes(tensor)
                    self._header[:] = torch.tensor([tag, data.numel(), int(stream is not None)])
                    comm.send(self._header, RECEIVER)
                    on = comm if stream is None else self.gpu(device.index, seconds)
                    if data.numel() > 0:
                        on.send(data, RECEIVER)
            except Exception as error:
                raise self.named(error) from None

        self._thread.submit(_on_stream, stream, before, tensors, lambda: work.run(body))
        return work

    def close(self) -> None:
        """Sends what it has, and leaves."""
        try:
            self._thread.submit(self.finalize)
        except RuntimeError:  # the program ends, and the thread has
            self.finalize()
        self._thread.shutdown(wait=False)


class Posted:
    """A receive that waits for its message, from one rank or from whoever is first."""

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
        self._changed = threading.Condition()
        self._posted: dict[Key, deque[Posted]] = defaultdict(deque)
        self._kept: dict[Key, deque[Tensor]] = defaultdict(deque)
        self._error: Optional[Exception] = None
        self._coming: Optional[Handle[Tensor]] = None  # the next header
        self._device = -1
        self._thread = threading.Thread(
            target=self._read, name=f"ropewalk receive {self._ranks[SENDER]}", daemon=True
        )
        self._thread.start()

    def post(self, posted: Posted, tag: int) -> None:
        """Receives after the receives of that tag that were posted before."""
        device = posted.tensor.device
        key = (tag, device.type == "cuda")
        with self._changed:
            if device.type == "cuda":
                self._device = device.index
            if self._kept[key]:
                if posted.take():
                    self._give(posted, self._kept[key].popleft())
                return
            if self._error is None:
                self._posted[key].append(posted)
                self._changed.notify()
                return
        posted.fail(self._error)

    def close(self) -> None:
        """Leaves; receives that wait end with an error."""
        with self._changed:
            self._closing = True
            self._changed.notify()
            waits = self._coming is not None
        if waits:
            self.abort()
        self._thread.join(timeout=1.0)

    # ---- the thread

    def _read(self) -> None:
        while True:
            with self._changed:
                while not self._closing and self._first_deadline() is None:
                    self._changed.wait()
                if self._closing:
                    break
            try:
                self._receive()
            except Exception as error:
                self._fail(self.named(error))
        self._fail(UsageError("the process group was destroyed"))
        if self._coming is None:
            self.finalize()

    def _first_deadline(self) -> Optional[float]:
        """Of what is posted; forgets what has found its message elsewhere. Under the lock."""
        first = None
        for queue in self._posted.values():
            while queue and queue[0].taken:
                queue.popleft()
            for posted in queue:
                if not posted.taken and (first is None or posted.until < first):
                    first = posted.until
        return first

    def _left(self) -> float:
        with self._changed:
            until = self._first_deadline()
        return 0.0 if until is None else max(until - time.monotonic(), 0.0)

    def _receive(self) -> None:
        """Receives a message, or ends receives whose time has passed."""
        if self.comm is None:
            try:
                self.join(self._left())
            except TimeoutError as error:
                self._expire(str(self.named(error)))
                return
        assert self.comm is not None
        if self._coming is None:
            self._coming = self.comm.recv(self._header, SENDER, blocking=False)
        # Not done() first: the wait costs less than asking twice.
        try:
            self._coming.wait(min(self._left(), _PATIENCE_SECONDS))
        except TimeoutError:
            self.comm.check()
            self._expire(f"rank {self._ranks[SENDER]} sent nothing")
            return
        self._coming = None
        tag, size, on_gpu = self._header.tolist()
        self._take(self.comm, (tag, bool(on_gpu)), size)

    def _take(self, comm: Communicator, key: Key, size: int) -> None:
        """Receives what follows a header: where it is wanted, or to be kept."""
        seconds = self._messages.seconds
        with self._changed:
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
                    on.set_timeout(seconds)
                    on.recv(flat_bytes(staged.tensor), SENDER)
                    if not key[1]:
                        on.set_timeout(math.inf)
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
            with self._changed:  # one may have been posted meanwhile
                posted = self._next(key)
                if posted is None:
                    self._kept[key].append(target)
                else:
                    self._give(posted, target)

    def _next(self, key: Key) -> Optional[Posted]:
        """The receive that takes the next message. Under the lock."""
        queue = self._posted.get(key)
        while queue:
            posted = queue.popleft()
            if posted.take():
                return posted
        if queue is not None:
            del self._posted[key]
        return None

    def _give(self, posted: Posted, kept: Tensor) -> None:
        """Ends a receive by a message that came before it was posted."""
        if posted.tensor.nbytes != kept.numel():
            self._end_of_other_size(posted, kept.numel())
            return
        tensor = posted.tensor.detach()
        stream = self.stream(tensor.device)
        with _Streamed(stream, posted.before, [tensor]):
            tensor.copy_(kept.view(tensor.dtype).view(tensor.shape))
            posted.work.end(source=self._source, stream=stream)

    def _end_of_other_size(self, posted: Posted, size: int) -> None:
        posted.work.end(
            self.named(
                UsageError(f"recv of {posted.tensor.nbytes} bytes: rank {SENDER} sent {size}")
            )
        )

    def _expire(self, why: str) -> None:
        """Ends the receives whose time has passed."""
        now = time.monotonic()
        with self._changed:
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
        with self._changed:
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


class _Streamed:
    """On a GPU: what is enqueued within goes to `stream`, after `before`. Else nothing."""

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
