"""NCCL's windows, one process for each GPU: registered, used, left, refused."""

from __future__ import annotations

import ctypes
import os
import sys

import nccl
import torch
import torch.distributed as dist
from nccl import FLOAT32, SUM, Comm, Config, Nccl, UniqueId

api = Nccl(nccl.load())
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
blocking = sys.argv[1] == "blocking"
torch.cuda.set_device(rank)
stream = torch.cuda.current_stream().cuda_stream
ELEMENTS = 4 << 20

store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), size, rank == 0)
unique = UniqueId()
if rank == 0:
    api.GetUniqueId(ctypes.byref(unique))
    store.set("id", bytes(unique))
unique = UniqueId.from_buffer_copy(store.get("id"))


def join(unique: UniqueId) -> Comm:
    made = Comm()
    config = Config(int(blocking))
    result = api.result(
        "CommInitRankConfig", ctypes.byref(made), size, unique, rank, ctypes.byref(config)
    )
    assert result in (nccl.SUCCESS, nccl.IN_PROGRESS)
    api.wait(made)
    return made


def register(place: int, count: int) -> tuple[int, ctypes.c_void_p]:
    window = ctypes.c_void_p()
    result = api.result("CommWindowRegister", comm, place, count, ctypes.byref(window), 1)
    if result == nccl.IN_PROGRESS:
        api.wait(comm)
        result = nccl.SUCCESS
    return result, window


def allocate() -> int:
    memory = ctypes.c_void_p()
    api.MemAlloc(ctypes.byref(memory), 4 * ELEMENTS)
    assert memory.value
    return memory.value


class View:
    """Memory as PyTorch takes it."""

    def __init__(self, address: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (ELEMENTS,), "typestr": "<f4", "data": (address, False), "version": 3,
        }  # fmt: skip


def use(address: int, seed: int) -> None:
    """Broadcast and all-reduce, in place."""
    tensor = torch.as_tensor(View(address), device="cuda")
    tensor.fill_(rank + seed)
    api.Broadcast(address, address, ELEMENTS, FLOAT32, 1, comm, stream)
    torch.cuda.synchronize()
    assert bool((tensor == 1 + seed).all()), tensor
    api.AllReduce(address, address, ELEMENTS, FLOAT32, SUM, comm, stream)
    torch.cuda.synchronize()
    assert bool((tensor == size * (1 + seed)).all()), tensor
    assert api.async_error(comm) == nccl.SUCCESS


comm = join(unique)
for seed in range(20):
    memory = allocate()
    result, window = register(memory, 4 * ELEMENTS)
    assert result == nccl.SUCCESS and window.value
    use(memory, seed)
    api.CommWindowDeregister(comm, window)
    assert api.result("CommWindowDeregister", comm, window) == nccl.ARGUMENT
    use(memory, seed + 100)
    api.MemFree(memory)
print("windows: ok")

# A bad buffer of one rank is an error of all; in a non-blocking communicator the log has it.
memory = allocate()
host = (ctypes.c_float * 64)()
window = ctypes.c_void_p()
bad = ctypes.addressof(host) if rank == 1 else memory
result, window = register(bad, 256)
assert not window.value
if blocking:
    assert result == nccl.ARGUMENT
    assert b"rank 1" in api.library.ncclGetLastError(comm)
use(memory, 7)
print("refusal: ok")

# What one rank registers alone changes nothing, and needs nobody else.
handle = ctypes.c_void_p()
if rank == 0:
    api.CommRegister(comm, memory, 4 * ELEMENTS, ctypes.byref(handle))
use(memory, 8)
if rank == 0:
    api.CommDeregister(comm, handle)

# The communicator ends with a window.
result, window = register(memory, 4 * ELEMENTS)
assert result == nccl.SUCCESS
use(memory, 9)
api.CommDestroy(comm)
api.MemFree(memory)
print("all done")
os._exit(0)  # without TCPStore's own complaints
