"""What tests on GPUs share. `make test-gpu` runs them; they skip where there are too few GPUs.

On a machine with one GPU, two ranks share it where a test asks for `need_ranks`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import ropewalk
from ropewalk.communicator import Communicator

DEADLINE_SECONDS = 120

# Loading a kernel at its first use waits for what runs on the GPU, which may be an operation that
# waits for this very rank.
os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
# Streams that share one of the GPU's queues wait for each other; there are eight unless told.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

torch = pytest.importorskip("torch")


@functools.cache
def num_gpus() -> int:
    return ropewalk.device_count()


def need_gpus(count: int = 2) -> None:
    """Skips the calling module."""
    if num_gpus() < count:
        reason = ropewalk.why_no_device() or f"there are {num_gpus()} GPUs, {count} are needed"
        pytest.skip(reason, allow_module_level=True)


def num_ranks() -> int:
    """One for each GPU, or two that share one."""
    return max(2, num_gpus())


def need_ranks() -> None:
    """Skips the calling module where there is no GPU."""
    need_gpus(1)


@contextmanager
def own_stream(comm: Communicator) -> Iterator[Any]:
    """The current stream of this thread is one of the rank's own: on the default stream of a GPU
    that ranks share, one rank's operation would wait for the other's."""
    stream = torch.cuda.Stream(comm.device)
    with torch.cuda.device(comm.device), torch.cuda.stream(stream):
        yield stream


TORCH_TYPES: dict[str, Any] = {
    "int8": torch.int8,
    "uint8": torch.uint8,
    "int32": torch.int32,
    "uint32": getattr(torch, "uint32", None),
    "int64": torch.int64,
    "uint64": getattr(torch, "uint64", None),
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float8e4m3": torch.float8_e4m3fn,
    "float8e5m2": torch.float8_e5m2,
}
"""Where PyTorch has it. Data goes there as bytes: it does not compute in all of them."""


def to_gpu(array: np.ndarray[Any, Any], device: int, shift: int = 0) -> Any:
    """A tensor with the array's bits, `shift` elements after the start of an allocation."""
    kind = TORCH_TYPES[type_name(array)]
    whole = torch.empty(array.size + shift, dtype=kind, device=f"cuda:{device}")
    view = whole[shift:]
    raw = torch.from_numpy(np.ascontiguousarray(array).view(np.uint8).reshape(-1).copy())
    view.view(torch.uint8).copy_(raw)
    return view


def to_host(tensor: Any, like: np.ndarray[Any, Any]) -> Any:
    """Its bits as an array of the type of `like`."""
    raw: Any = tensor.contiguous().view(-1).view(torch.uint8).cpu().numpy()
    return raw.view(like.dtype)


def type_name(array: np.ndarray[Any, Any]) -> str:
    name: str = array.dtype.name
    return {"float8_e4m3fn": "float8e4m3", "float8_e5m2": "float8e5m2"}.get(name, name)


def pin_early(size: int) -> None:
    """What PyTorch's `item()` needs of pinned memory, for `size` threads.

    It is pinned at the first use, and CUDA then waits for what runs on the GPU: on a shared one
    that may be another rank's operation, which waits for this rank.
    """
    kinds = (torch.uint8, torch.int16, torch.int32, torch.int64)
    kept = [torch.empty(1, dtype=kind, pin_memory=True) for kind in kinds for _ in range(2 * size)]
    del kept


@contextmanager
def on_gpus(size: int) -> Iterator[list[Communicator]]:
    """One rank per GPU, in this process; aborted at the end if a test broke them."""
    comms = ropewalk.init_all(size, device="cuda")
    pin_early(size)
    try:
        yield comms
    finally:
        for comm in comms:
            if not comm.closed:
                comm.abort()
