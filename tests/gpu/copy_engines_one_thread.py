"""Collectives by copy engines of all GPUs in one thread: groups, on streams of their own and on the
default stream, whose copies between GPUs wait for both of them."""

from __future__ import annotations

import ctypes
from typing import Callable

import nccl
import torch
from nccl import FLOAT32, Comm, Nccl

SYMMETRIC = 1
WINDOW_FLOATS = 16 << 20

api = Nccl(nccl.load())
n = torch.cuda.device_count()


class Floats:
    """Memory as PyTorch takes it."""

    def __init__(self, address: int | None) -> None:
        self.__cuda_array_interface__ = {
            "shape": (WINDOW_FLOATS,), "typestr": "<f4", "data": (address, False), "version": 3,
        }  # fmt: skip


def synchronize() -> None:
    for g in range(n):
        torch.cuda.synchronize(g)


made = (ctypes.c_void_p * n)()
api.CommInitAll(ctypes.addressof(made), n, None)
comms = [Comm(value) for value in made]
memory = [ctypes.c_void_p() for _ in range(n)]
windows = [ctypes.c_void_p() for _ in range(n)]
for g in range(n):
    torch.cuda.set_device(g)
    api.MemAlloc(ctypes.byref(memory[g]), 4 * WINDOW_FLOATS)
api.GroupStart()
for g in range(n):
    torch.cuda.set_device(g)
    api.CommWindowRegister(
        comms[g], memory[g], 4 * WINDOW_FLOATS, ctypes.byref(windows[g]), SYMMETRIC
    )
api.GroupEnd()
views = [torch.as_tensor(Floats(memory[g].value), device=f"cuda:{g}") for g in range(n)]
own_streams = [torch.cuda.Stream(device=g) for g in range(n)]


def grouped(call: Callable[[int, Comm], None]) -> None:
    api.GroupStart()
    for g, comm in enumerate(comms):
        call(g, comm)
    api.GroupEnd()


def wanted(operation: str, inputs: list[torch.Tensor], count: int, g: int) -> torch.Tensor:
    """Of GPU `g`'s output."""
    if operation == "AllGather":
        parts = [one[:count] for one in inputs]
    elif operation == "AlltoAll":
        parts = [one[g * count : (g + 1) * count] for one in inputs]
    else:
        parts = [inputs[n - 1][:count]]
    return torch.cat([part.to(f"cuda:{g}") for part in parts])


def check(operation: str, count: int, streams: list[int], seed: int) -> None:
    """Two calls, one behind the other."""
    inputs = [torch.empty(n * count, device=f"cuda:{g}") for g in range(n)]
    outputs = [view[64 : 64 + n * count] for view in views]
    for g in range(n):
        kind = torch.arange(n * count, device=f"cuda:{g}")
        inputs[g].copy_((kind * 7 + g * 13 + seed) % 101)
        outputs[g].fill_(-1)
    synchronize()
    rooted = (n - 1,) if operation == "Broadcast" else ()

    def call(g: int, comm: Comm) -> None:
        source, target = inputs[g].data_ptr(), outputs[g].data_ptr()
        getattr(api, operation)(source, target, count, FLOAT32, *rooted, comm, streams[g])

    grouped(call)
    grouped(call)
    synchronize()
    for g in range(n):
        right = wanted(operation, inputs, count, g)
        assert torch.equal(outputs[g][: right.numel()], right), (operation, count, seed, g)


calls = 0
for count in (1001, 1 << 20):
    for seed in range(4):
        for streams in ([stream.cuda_stream for stream in own_streams], [0] * n):
            for operation in ("AllGather", "AlltoAll", "Broadcast"):
                check(operation, count, streams, seed)
                calls += 2
for comm in comms:
    assert api.async_error(comm) == nccl.SUCCESS
for g in range(n):
    api.CommWindowDeregister(comms[g], windows[g])
api.GroupStart()
for comm in comms:
    api.CommDestroy(comm)
api.GroupEnd()
print(f"calls: {calls}")
print("all done")
