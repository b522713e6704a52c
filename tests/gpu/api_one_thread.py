"""NCCL's API in one process with all GPUs: groups, splits, operators, graphs, errors."""

from __future__ import annotations

import ctypes
import time
from typing import Callable

import nccl
import torch
from nccl import AVG, BFLOAT16, FLOAT32, SUM, Comm, Config, Nccl, SimInfo, UniqueId

api = Nccl(nccl.load())
n = torch.cuda.device_count()
streams = [torch.cuda.Stream(device=g) for g in range(n)]


def tensors(length: int, scale: float = 1) -> list[torch.Tensor]:
    made = [torch.full((length,), (g + 1.0) * scale, device=f"cuda:{g}") for g in range(n)]
    for g in range(n):
        torch.cuda.synchronize(g)
    return made


def synchronize() -> None:
    for stream in streams:
        stream.synchronize()


def grouped(call: Callable[[int, Comm, int], None], comms: list[Comm]) -> None:
    api.GroupStart()
    for g, comm in enumerate(comms):
        call(g, comm, streams[g].cuda_stream)
    api.GroupEnd()
    synchronize()


def reduce_in_place(data: list[torch.Tensor], kind: int, ops: list[int], comms: list[Comm]) -> None:
    grouped(
        lambda g, comm, stream: api.AllReduce(
            data[g].data_ptr(), data[g].data_ptr(), data[g].numel(), kind, ops[g], comm, stream
        ),
        comms,
    )


def all_reduce(comms: list[Comm], op: int = SUM, length: int = 1000) -> list[torch.Tensor]:
    data = tensors(length)
    reduce_in_place(data, FLOAT32, [op] * n, comms)
    return data


def expect(data: list[torch.Tensor], value: float) -> None:
    for tensor in data:
        assert bool((tensor == value).all()), (tensor, value)


def init_all() -> list[Comm]:
    comms = (ctypes.c_void_p * n)()
    api.CommInitAll(ctypes.addressof(comms), n, None)
    return [Comm(value) for value in comms]


total = n * (n + 1) / 2
comms = init_all()
for g, comm in enumerate(comms):
    for name, right in (("Count", n), ("UserRank", g), ("CuDevice", g)):
        value = ctypes.c_int()
        getattr(api, "Comm" + name)(comm, ctypes.byref(value))
        assert value.value == right, (name, value.value)
for length in (1, 1000, 1 << 20, 1 << 24):
    expect(all_reduce(comms, SUM, length), total)
expect(all_reduce(comms, AVG), total / n)
print("all_reduce: ok")

data = tensors(64)
grouped(lambda g, comm, s: api.Bcast(data[g].data_ptr(), 64, FLOAT32, n - 1, comm, s), comms)
expect(data, n)
sent, received = tensors(64 * n), tensors(64 * n)
grouped(
    lambda g, comm, s: api.AlltoAll(
        sent[g].data_ptr(), received[g].data_ptr(), 64, FLOAT32, comm, s
    ),
    comms,
)
for tensor in received:
    assert tensor.view(n, 64)[:, 0].tolist() == [r + 1.0 for r in range(n)]
print("bcast, all_to_all: ok")

# Sends and receives of one thread, both ways.
sent, received = tensors(5000), tensors(5000)
api.GroupStart()
for g, comm in enumerate(comms):
    s = streams[g].cuda_stream
    api.Send(sent[g].data_ptr(), 5000, FLOAT32, (g + 1) % n, comm, s)
    api.Recv(received[g].data_ptr(), 5000, FLOAT32, (g - 1) % n, comm, s)
api.GroupEnd()
synchronize()
for g in range(n):
    expect([received[g]], (g - 1) % n + 1)
print("send, recv: ok")

# Operators with scalars on the host and on the device.
for residence in (0, 1):
    ops = []
    scalars = []
    for g, comm in enumerate(comms):
        if residence == 1:
            scalar = ctypes.c_float(0.5)
            pointer = ctypes.addressof(scalar)
        else:
            scalar = torch.full((1,), 0.5, device=f"cuda:{g}")
            torch.cuda.synchronize(g)
            pointer = scalar.data_ptr()
        scalars.append(scalar)
        created = ctypes.c_int()
        api.RedOpCreatePreMulSum(ctypes.byref(created), pointer, FLOAT32, residence, comm)
        ops.append(created.value)
    data = tensors(100)
    reduce_in_place(data, FLOAT32, ops, comms)
    expect(data, total * 0.5)
    for op, comm in zip(ops, comms):
        api.RedOpDestroy(op, comm)
        assert api.result("RedOpDestroy", op, comm) == nccl.ARGUMENT
        assert api.result("AllReduce", None, None, 0, FLOAT32, op, comm, None) == nccl.ARGUMENT
# 0.5 in bfloat16, for the two bytes of that type.
half = ctypes.c_uint16(0x3F00)
ops = []
for comm in comms:
    created = ctypes.c_int()
    api.RedOpCreatePreMulSum(ctypes.byref(created), ctypes.addressof(half), BFLOAT16, 1, comm)
    ops.append(created.value)
short = [tensor.bfloat16() for tensor in tensors(1001)]
for g in range(n):
    torch.cuda.synchronize(g)
reduce_in_place(short, BFLOAT16, ops, comms)
expect(short, total * 0.5)
print("pre-multiplied sums: ok")

# Split inside a group: each rank alone, all reversed, and no colour.
for color, size in ((lambda g: g, 1), (lambda g: 0, n), (lambda g: -1, 0)):
    parts = [Comm() for _ in range(n)]
    api.GroupStart()
    for g, comm in enumerate(comms):
        api.CommSplit(comm, color(g), -g, ctypes.addressof(parts[g]), None)
    api.GroupEnd()
    if size == 0:
        assert not any(parts)
        continue
    rank = ctypes.c_int()
    api.CommUserRank(parts[0], ctypes.byref(rank))
    assert rank.value == size - 1
    data = all_reduce(parts)
    for g in range(n):
        expect([data[g]], total if size == n else g + 1)
    for part in parts:
        api.CommDestroy(part)
print("split: ok")

# Memory and registration.
for g, comm in enumerate(comms):
    torch.cuda.set_device(g)
    memory, handle = ctypes.c_void_p(), ctypes.c_void_p()
    api.MemAlloc(ctypes.byref(memory), 1 << 20)
    api.CommRegister(comm, memory, 1 << 20, ctypes.byref(handle))
    assert handle.value
    api.CommDeregister(comm, handle)
    api.MemFree(memory)
print("registration: ok")

# Windows are registered by all ranks together: two in one group, for all ranks of this thread.
data = tensors(1 << 22)
windows = [[ctypes.c_void_p(), ctypes.c_void_p()] for _ in range(n)]
api.GroupStart()
for g, comm in enumerate(comms):
    window_bytes = data[g].numel() * 2
    for k in range(2):
        place = data[g].data_ptr() + k * window_bytes
        api.CommWindowRegister(comm, place, window_bytes, ctypes.addressof(windows[g][k]), 1)
    assert not windows[g][0]
    assert api.result("AllReduce", None, None, 0, FLOAT32, SUM, comm, None) == nccl.ARGUMENT
assert api.result("GroupEnd") == nccl.ARGUMENT
assert not any(window for pair in windows for window in pair), "a group that failed makes nothing"
api.GroupStart()
for g, comm in enumerate(comms):
    for k in range(2):
        place = data[g].data_ptr() + k * window_bytes
        api.CommWindowRegister(comm, place, window_bytes, ctypes.addressof(windows[g][k]), 1)
api.GroupEnd()
assert all(pair[0].value and pair[1].value != pair[0].value for pair in windows)
reduce_in_place(data, FLOAT32, [SUM] * n, comms)
expect(data, total)
# Deregistering is local: one after the other, and at once.
for comm, pair in zip(comms, windows):
    for window in pair:
        api.CommWindowDeregister(comm, window)
        assert api.result("CommWindowDeregister", comm, window) == nccl.ARGUMENT
    api.CommWindowDeregister(comm, None)
print("windows: ok")

# Errors leave the communicator whole.
host = torch.zeros(10)
s = streams[0].cuda_stream
device0 = tensors(10)[0]
assert api.result("AllReduce", None, None, 10, FLOAT32, SUM, comms[0], s) == nccl.ARGUMENT
assert api.result(
    "AllReduce", device0.data_ptr(), device0.data_ptr(), 10, 99, SUM, comms[0], s
) == (nccl.ARGUMENT)
assert api.result("AllReduce", host.data_ptr(), host.data_ptr(), 10, FLOAT32, SUM, comms[0], s) in (
    nccl.ARGUMENT,
    nccl.CUDA_ERROR,
)
assert b"sendbuf" in api.library.ncclGetLastError(None), api.library.ncclGetLastError(None)
api.GroupStart()
assert api.result("Reduce", None, None, 10, FLOAT32, SUM, n, comms[0], s) == nccl.ARGUMENT
assert api.result("GroupEnd") == nccl.ARGUMENT
info = SimInfo(ctypes.sizeof(SimInfo), 0x74685283, 22809, 0)
api.GroupStart()
for comm in comms:
    api.AllReduce(device0.data_ptr(), device0.data_ptr(), 10, FLOAT32, SUM, comm, s)
api.GroupSimulateEnd(ctypes.byref(info))
expect(all_reduce(comms), total)
print("errors: ok")

# Destroyed one after the other in one thread, with operations under way.
data = tensors(1 << 22)
api.GroupStart()
for g, comm in enumerate(comms):
    api.AllReduce(
        data[g].data_ptr(), data[g].data_ptr(), 1 << 22, FLOAT32, SUM, comm, streams[g].cuda_stream
    )
api.GroupEnd()
for comm in comms:
    begin = time.monotonic()
    api.CommDestroy(comm)
    assert time.monotonic() - begin < 10
synchronize()
expect(data, total)
print("destroy: ok")

# Not blocking, in a group, with bounds of blocks.
unique = UniqueId()
api.GetUniqueId(ctypes.byref(unique))
config = Config(blocking=0)
config.min_ctas, config.max_ctas = 1, 2
comms = [Comm() for _ in range(n)]
api.GroupStart()
for g in range(n):
    torch.cuda.set_device(g)
    api.CommInitRankConfig(ctypes.addressof(comms[g]), n, unique, g, ctypes.byref(config))
assert api.result("GroupEnd") in (nccl.SUCCESS, nccl.IN_PROGRESS)
for comm in comms:
    api.wait(comm)
expect(all_reduce(comms), total)
for comm in comms:
    assert api.result("CommFinalize", comm) in (nccl.SUCCESS, nccl.IN_PROGRESS)
for comm in comms:
    api.wait(comm)
    api.CommDestroy(comm)
print("not blocking: ok")

# A rank that nobody joins can be given up.
if n > 1:
    lonely = Comm()
    api.GetUniqueId(ctypes.byref(unique))
    torch.cuda.set_device(0)
    result = api.result(
        "CommInitRankConfig", ctypes.addressof(lonely), 2, unique, 0, ctypes.byref(config)
    )
    assert result == nccl.IN_PROGRESS, result
    assert api.async_error(lonely) == nccl.IN_PROGRESS
    begin = time.monotonic()
    api.CommAbort(lonely)
    assert time.monotonic() - begin < 5

    # An operation that waits for another rank ends by an abort.
    comms = init_all()
    torch.cuda.set_device(0)
    data = tensors(100)
    api.AllReduce(data[0].data_ptr(), data[0].data_ptr(), 100, FLOAT32, SUM, comms[0], s)
    time.sleep(0.2)
    begin = time.monotonic()
    api.CommAbort(comms[0])
    streams[0].synchronize()
    assert time.monotonic() - begin < 10
    api.CommAbort(comms[1])
    for comm in comms[2:]:
        api.CommAbort(comm)
    print("abort: ok")
print("all done")
