"""PyTorch's current stream on a GPU, changed and read by what PyTorch's own functions call.

torch.cuda.stream and torch.cuda.current_stream look at kinds of arguments, and make objects, for
some 15 us an operation of a process group. The functions beneath them are private: where a PyTorch
lacks one, and where another GPU is the current one, its public functions do it.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Optional

import torch

Stream = Any  # torch.cuda.Stream; the type checker does not read PyTorch

_current: Any = getattr(torch._C, "_cuda_getCurrentStream", None)
_set: Any = getattr(torch._C, "_cuda_setStream", None)
_device: Any = getattr(torch._C, "_cuda_getDevice", None)
_fast = None not in (_current, _set, _device)


class On:
    """`with On(stream):` what the block enqueues goes to `stream`, a stream of PyTorch's."""

    __slots__ = ("_before", "_guard", "_stream")

    def __init__(self, stream: Stream) -> None:
        """Nothing changes yet."""
        self._stream = stream
        self._before: Any = None
        self._guard: Any = None

    def __enter__(self) -> None:
        """The stream is this thread's current one, and its GPU the current one."""
        stream = self._stream
        if _fast and _device() == stream.device_index:
            self._before = _current(stream.device_index)
            _set(
                stream_id=stream.stream_id,
                device_index=stream.device_index,
                device_type=stream.device_type,
            )
        else:
            self._guard = torch.cuda.stream(stream)
            self._guard.__enter__()

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        """The one before is the current one again."""
        if self._guard is not None:
            self._guard.__exit__(kind, error, trace)
            return
        number, device, of_type = self._before
        _set(stream_id=number, device_index=device, device_type=of_type)
