"""What the process group of `ropewalk.torch_backend` returns, and how its operations end."""

from __future__ import annotations

import ctypes
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, Callable, Optional

import torch
from torch._C._distributed_c10d import Work as _Work

from ropewalk.errors import TimeoutError

Job = Callable[[], None]

_NO_TIMEOUT = timedelta(0)


class Work(_Work):  # type: ignore[misc]
    """An operation of a process group.

    On the CPU it is done when its result is there. On a GPU it is done when the operation is
    enqueued; `wait` lets the current stream wait for it, not the host, as NCCL's does.

    Threads: any.
    """

    def __init__(self, name: str, result: Any, stream: Any = None) -> None:
        """`result` is what the future gives; `stream` is where the operation runs on a GPU."""
        super().__init__()
        self._name = name
        self._result = result
        self._stream = stream
        self._event: Any = None
        self._error: Optional[Exception] = None
        self._source = -1
        self._done = False
        self._at_end: list[Job] = []
        self._pending = threading.Lock()
        self._pending.acquire()
        self._begun: Any = None  # the future that ends with the operation, where one was asked for
        self._future: Any = None
        self._record = _begin_record(name, result)

    # ---- for the operation

    def run(self, body: Job) -> None:
        """Runs `body`, which is the operation, and ends this with its outcome."""
        try:
            with torch.no_grad():  # tensors may be leaves that require gradients
                body()
        except Exception as error:
            self.end(error)
        else:
            self.end()

    def end(self, error: Optional[Exception] = None, source: int = -1, stream: Any = None) -> None:
        """The operation is done, or enqueued.

        Args:
            error: what went wrong.
            source: the rank in the group that sent what was received.
            stream: where it was enqueued, if not where it was to be.
        """
        if stream is not None:
            self._stream = stream
        if self._stream is not None and error is None:
            self._event = self._stream.record_event()
        if self._record is not None:  # before the caller can end the profiler
            self._record.set_result(None)
        with _changing:
            self._error = error
            self._source = source
            self._done = True
            begun, at_end = self._begun, self._at_end
        self._pending.release()
        if begun is not None:
            _settler.put(lambda: self._settle(begun))
        for job in at_end:
            job()

    def when_done(self, job: Job) -> None:
        """Runs a short `job` when this has ended, or now."""
        with _changing:
            if not self._done:
                self._at_end.append(job)
                return
        job()

    # ---- for its caller

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Raises what went wrong, or TimeoutError after `timeout`: the operation goes on."""
        if not self._done:
            seconds = timeout.total_seconds()
            limit = min(seconds, threading.TIMEOUT_MAX) if seconds > 0 else -1
            _settler.step_aside()
            if not self._pending.acquire(timeout=limit):
                raise TimeoutError(f"{self._name}: not done after the timeout of {seconds:.3g} s")
            self._pending.release()
        if self._error is not None:
            raise self._error
        if self._event is not None:
            torch.cuda.current_stream(self._stream.device).wait_event(self._event)
        return True

    def get_future(self) -> Any:
        """The future of the tensors that hold the result.

        Callbacks run in threads that do nothing else: they may wait for other operations.
        """
        with _changing:
            if self._future is None:
                devices = [] if self._stream is None else [self._stream.device]
                self._begun = torch.futures.Future(devices=devices)
                # What set_exception does is a value to C++, which reads it as tensors. What a
                # callback raises is an error there too.
                self._future = self._begun.then(lambda _: self._outcome())
                settle = self._done
            else:
                settle = False
        if settle:
            self._settle(self._begun)
        return self._future

    def is_completed(self) -> bool:
        """Whether the operation has ended, well or not."""
        return self._done

    def is_success(self) -> bool:
        """Whether it has ended well."""
        return self._done and self._error is None

    def exception(self) -> Optional[BaseException]:
        """What it ended with, if not well; None also while it runs."""
        return self._error

    def result(self) -> Any:
        """The tensors that hold the result."""
        self.wait()
        return self._result

    def synchronize(self) -> None:
        """As `wait`."""
        self.wait()

    block_current_stream = synchronize

    def source_rank(self) -> int:
        """The rank in the group that sent what was received; -1 before, and for the others."""
        return self._source

    _source_rank = source_rank

    # ---- common parts

    def _outcome(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._result

    def _settle(self, begun: Any) -> None:
        if self._stream is None:
            begun.set_result(None)
            return
        with torch.cuda.stream(self._stream):  # what is enqueued there is what the future is of
            begun.set_result(None)

    def __del__(self) -> None:
        """Stays where C++ holds the operation: what it calls there are methods of this object."""
        if _holders is not None and _holders(self) > 1:
            _held_by_cpp.append(self)
        _let_go()


class Settler:
    """Ends futures in the order of their operations, apart from the threads that run operations.

    A future's callbacks run where it is ended, and may wait for other operations and their futures.
    One thread at a time ends futures; when a callback waits for an operation, or holds up the
    others for PATIENCE_SECONDS, another thread goes on.
    """

    PATIENCE_SECONDS = 0.02
    MOST_THREADS = 256  # of callbacks that wait at the same time

    def __init__(self) -> None:
        """Starts no thread yet."""
        self._threads = ThreadPoolExecutor(self.MOST_THREADS, "ropewalk futures")
        self._changing = threading.Lock()
        self._jobs: deque[Job] = deque()
        self._at_work: Optional[object] = None  # whose turn it is
        self._watched = False
        self._mine = threading.local()

    def put(self, job: Job) -> None:
        """Runs `job` after those that were put before."""
        with self._changing:
            self._jobs.append(job)
            if self._at_work is None:
                self._start()
            elif not self._watched:
                self._watched = True
                self._threads.submit(self._watch)

    def step_aside(self) -> None:
        """Called by a callback that is about to wait: another thread goes on with the others."""
        turn = getattr(self._mine, "turn", None)
        if turn is not None:
            with self._changing:
                self._pass_on(turn)

    def _start(self) -> None:
        self._at_work = turn = object()
        self._threads.submit(self._work, turn)

    def _pass_on(self, turn: object) -> None:
        if self._at_work is turn:
            self._at_work = None
            if self._jobs:
                self._start()

    def _work(self, turn: object) -> None:
        self._mine.turn = turn
        while True:
            with self._changing:
                if self._at_work is not turn:
                    break
                if not self._jobs:
                    self._at_work = None
                    break
                job = self._jobs.popleft()
            job()
        self._mine.turn = None

    def _watch(self) -> None:
        while True:
            with self._changing:
                turn, waiting = self._at_work, len(self._jobs)
                if turn is None or not waiting:
                    self._watched = False
                    return
                first = self._jobs[0]
            time.sleep(self.PATIENCE_SECONDS)
            with self._changing:
                if self._jobs and self._jobs[0] is first:
                    self._pass_on(turn)


_changing = threading.Lock()  # the futures of Work
_settler = Settler()

# ---- works that only C++ holds


_held_by_cpp: deque[Work] = deque()


def _let_go() -> None:
    """Forgets what C++ holds no more."""
    for _ in range(len(_held_by_cpp)):
        try:
            work = _held_by_cpp.popleft()
        except IndexError:  # another thread was faster
            return
        if _holders is not None and _holders(work) > 1:
            _held_by_cpp.append(work)


def _count_holders(work: Work) -> int:
    """References of C++ and Python (one) to the C++ part.

    A pybind11 object holds the address of its C++ part behind the Python header; a c10 object
    begins with the address of its virtual functions, and its count of strong references follows.
    """
    cpp_part = ctypes.c_void_p.from_address(id(work) + object.__basicsize__).value
    assert cpp_part is not None
    return ctypes.c_uint32.from_address(cpp_part + ctypes.sizeof(ctypes.c_void_p)).value


def _can_count() -> bool:
    """Whether objects lie so in this PyTorch."""
    try:
        work = _Work()
        alone = _count_holders(work)
        boxed = work.boxed()
        return alone == 1 and _count_holders(work) == 2 and boxed is not None
    except (AttributeError, RuntimeError):
        return False


_holders: Optional[Callable[[Work], int]] = _count_holders if _can_count() else None

# ---- profiles


def _begin_record(name: str, tensors: Any) -> Any:
    """The operation in PyTorch's profiler, where one is at work: a future that ends it.

    A record that another thread ends by itself would have no end: the profiler belongs to the
    thread of the call, which only what C++ runs at the end of a future knows of.
    """
    if not torch.autograd._profiler_enabled():
        return None
    if tensors and isinstance(tensors[0], (list, tuple)):
        tensors = [tensor for some in tensors for tensor in some]
    shapes = ", ".join(f"{tensor.dtype}{list(tensor.shape)}" for tensor in tensors or ())
    record = torch.ops.profiler._record_function_enter_new(f"ropewalk:{name}", shapes)
    end = torch.futures.Future()
    torch.ops.profiler._call_end_callbacks_on_jit_fut._RecordFunction(record, end)
    return end
