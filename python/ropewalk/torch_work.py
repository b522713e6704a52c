"""What the process group of `ropewalk.torch_backend` returns, and how its threads end it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Callable, Optional

import torch
from torch._C._distributed_c10d import Work as _Work

Job = Callable[[], None]

_NO_TIMEOUT = timedelta(0)


class Work(_Work):  # type: ignore[misc]
    """An operation of a process group.

    On the CPU it is done when its future is. On a GPU the future is done when the operation is
    enqueued; `wait` lets the current stream wait for it, not the host, as NCCL's does.
    """

    def __init__(self, future: Any) -> None:
        """Takes the future of the operation's tensors."""
        super().__init__()
        self._future = future

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Raises what went wrong. The setting TIMEOUT bounds the wait, not `timeout`."""
        self._future.wait()
        return True

    def get_future(self) -> Any:
        """The future of the tensors that hold the result."""
        return self._future

    def is_completed(self) -> bool:
        """Whether the operation has ended, well or not."""
        return bool(self._future.done())

    def is_success(self) -> bool:
        """Whether it has ended well."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> Optional[BaseException]:
        """What it ended with, if not well; None also while it runs."""
        if not self._future.done():
            return None
        try:
            self._future.wait()
        except Exception as error:
            return error
        return None

    def result(self) -> Any:
        """The tensors that hold the result."""
        return self._future.wait()

    def synchronize(self) -> None:
        """As `wait`."""
        self._future.wait()


def settle(future: Any, body: Job, result: Any) -> None:
    """Runs `body`, and ends the future with `result` or with what was raised."""
    try:
        with torch.no_grad():  # tensors may be leaves that require gradients; a thread's own state
            body()
    except Exception as error:
        future.set_exception(error)
    else:
        future.set_result(result)
