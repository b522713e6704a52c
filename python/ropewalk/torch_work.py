"""What the process group of `ropewalk.torch_backend` returns, and how its operations end."""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
from collections import deque
from datetime import timedelta
from types import FrameType
from typing import Any, Callable, Optional

import torch
from torch._C._distributed_c10d import Work as _Work

from ropewalk.errors import TimeoutError
from ropewalk.torch_compiling import not_traced
from ropewalk.torch_streams import On
from ropewalk.torch_threads import Job, settler

_NO_TIMEOUT = timedelta(0)

_Future: Any = torch._C.Future  # what torch.futures.Future is at its bottom
_set_grad_enabled: Callable[[bool], None] = torch._C._set_grad_enabled  # an operation's bare cost


@not_traced
class Work(_Work):  # type: ignore[misc]
    """An operation of a process group.

    On the CPU it is done when its result is there. On a GPU it is done when the operation is
    enqueued; `wait` lets the current stream wait for it, not the host, as NCCL's does.

    Threads: any.
    """

    _done = False
    _error: Optional[Exception] = None
    _source = -1
    _event: Any = None
    _at_end: tuple[Job, ...] = ()
    _future: Any = None  # for Python, where it asked for one
    _begun: Any = None  # ends with the operation, where C++ asked for a future too early
    _future_in_cpp: Any = None  # that one, after _begun
    _record: Any = None

    def __init__(
        self, name: str, result: Any, stream: Any = None, inputs: Optional[list[Any]] = None
    ) -> None:
        """Notes what is not there to be read yet.

        Args:
            name: the operation's, in profiles and messages.
            result: what the future gives.
            stream: where the operation runs on a GPU.
            inputs: tensors whose shapes profiles show; None: `result`.
        """
        super().__init__()
        self._name = name
        self._result = result
        self._stream = stream
        self._pending = threading.Lock()
        self._pending.acquire()
        if _profiler_enabled():
            self._record = _begin_record(name, result if inputs is None else inputs)

    # ---- for the operation

    def run(self, body: Job) -> None:
        """Runs `body`, which is the operation, and ends this with its outcome."""
        failure = None
        before = torch.is_grad_enabled()
        _set_grad_enabled(False)  # tensors may be leaves that require gradients
        try:
            body()
        except Exception as error:
            failure = error
        finally:
            _set_grad_enabled(before)
        self.end(failure)

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
            future, begun, at_end = self._future, self._begun, self._at_end
        self._pending.release()
        for job in at_end:
            job()
        for ended in (future, begun):
            if ended is not None:
                settler.put(functools.partial(self._settle, ended))

    def when_done(self, job: Job) -> None:
        """Runs a short `job` when this has ended, or now."""
        with _changing:
            if not self._done:
                self._at_end += (job,)
                return
        job()

    # ---- for its caller

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Raises the operation's error, or TimeoutError after `timeout`: it then continues."""
        if not self._done:
            settler.step_aside()
            seconds = timeout.total_seconds()
            if seconds <= 0:
                self._pending.acquire()
            elif not self._pending.acquire(timeout=min(seconds, threading.TIMEOUT_MAX)):
                raise TimeoutError(f"{self._name}: not done after the timeout of {seconds:.3g} s")
            self._pending.release()
        if self._error is not None:
            raise self._error
        if self._event is not None:
            torch.cuda.current_stream(self._stream.device).wait_event(self._event)
        return True

    def get_future(self) -> Any:
        """The future of the tensors that hold the result.

        Callbacks run where nothing waits for them: they may wait for other operations.
        """
        # On a GPU the other one is better for Python too: PyTorch looks for the tensors in a value
        # from Python by pickling it.
        for_python = self._stream is None and _called_by_python(sys._getframe())
        made = None
        with _changing:
            if for_python and self._future is None:
                made = self._future = torch.futures.Future()
            elif not for_python and self._future_in_cpp is None:
                devices = [] if self._stream is None else [self._stream.device]
                made = _Future(devices)
                if self._event is not None:  # enqueued, and so without an error
                    self._future_in_cpp = made
                else:
                    # What set_exception does is a value to C++, which reads it as tensors. What a
                    # callback raises is an error there.
                    self._begun = made
                    self._future_in_cpp = made.then(self._outcome)
            done = self._done
        if made is not None and done:
            self._settle(made)
        return self._future if for_python else self._future_in_cpp

    def is_completed(self) -> bool:
        """Whether the operation has ended, well or not."""
        return self._done

    def is_success(self) -> bool:
        """Whether it has ended well."""
        return self._done and self._error is None

    def exception(self) -> Optional[BaseException]:
        """Its error, if any; None also while it runs."""
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
        """The group rank of the sender; -1 before, and for other operations."""
        return self._source

    _source_rank = source_rank

    # ---- common parts

    def _outcome(self, _begun: Any) -> Any:
        if self._error is not None:
            raise self._error
        if self._event is not None:
            # A callback has streams of its own, of which the future that it gives its value to
            # takes note. They wait for those of _begun's value alone, which is none.
            torch.cuda.current_stream(self._stream.device).wait_event(self._event)
        return self._result

    def _settle(self, future: Any) -> None:
        if self._stream is None:
            self._end_future(future)
            return
        with On(self._stream):  # what is enqueued there is what the future is of
            self._end_future(future)

    def _end_future(self, future: Any) -> None:
        if future is self._begun:
            future.set_result(None)
        elif self._error is not None:
            future.set_exception(self._error)
        else:
            future.set_result(self._result)

    def __del__(self) -> None:
        """Stays where C++ holds the operation: what it calls there are methods of this object."""
        if _holders is not None and _holders(self) > 1:
            _held_by_cpp.append(self)
        _let_go()


_changing = threading.Lock()  # the futures of Work


def _called_by_python(method: FrameType) -> bool:
    """Whether a method was called by Python's code that names it: else C++ may have called it."""
    caller = method.f_back
    return caller is not None and method.f_code.co_name in caller.f_code.co_names


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


_profiler_enabled: Callable[[], bool] = torch.autograd._profiler_enabled
_enter_with_inputs = getattr(torch._C._autograd, "_record_function_with_args_enter", None)


def _begin_record(name: str, inputs: list[Any]) -> Any:
    """The operation in PyTorch's profiler: a future that ends it.

    A record that another thread ends by itself would have no end: the profiler belongs to the
    thread of the call, which only what C++ runs at the end of a future knows of.
    """
    title = f"ropewalk:{name}"
    if _enter_with_inputs is not None:
        record = _enter_with_inputs(title, *inputs)
    else:
        record = torch.ops.profiler._record_function_enter_new(title, None)
    end = torch.futures.Future()
    torch.ops.profiler._call_end_callbacks_on_jit_fut._RecordFunction(record, end)
    return end
