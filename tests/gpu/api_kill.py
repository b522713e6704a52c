"""Rank 1 is killed while rank 0's kernel waits for it: rank 0 is told, and its stream ends."""

from __future__ import annotations

import ctypes
import os
import signal
import time

import nccl
import torch
import torch.distributed as dist
from nccl import FLOAT32, SUM, Comm, Nccl, UniqueId

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), size, rank == 0)
api = Nccl(nccl.load())
torch.cuda.set_device(rank)
unique = UniqueId()
if rank == 0:
    api.GetUniqueId(ctypes.byref(unique))
    store.set("id", bytes(unique))
unique = UniqueId.from_buffer_copy(store.get("id"))
comm = Comm()
api.CommInitRank(ctypes.addressof(comm), size, unique, rank)
stream = torch.cuda.Stream()
data = torch.ones(1000, device="cuda")
torch.cuda.synchronize()
api.AllReduce(data.data_ptr(), data.data_ptr(), 1000, FLOAT32, SUM, comm, stream.cuda_stream)
stream.synchronize()
assert bool((data == size).all())
if rank == 1:
    time.sleep(0.5)
    print("killing myself")
    os.kill(os.getpid(), signal.SIGKILL)
api.AllReduce(data.data_ptr(), data.data_ptr(), 1000, FLOAT32, SUM, comm, stream.cuda_stream)
time.sleep(0.5)
begin = time.monotonic()
while api.async_error(comm) == nccl.SUCCESS:
    assert time.monotonic() - begin < 20, "never told"
    time.sleep(0.001)
told = time.monotonic() - begin
assert api.async_error(comm) == nccl.REMOTE
print(f"told after {told:.3f} s: {api.library.ncclGetLastError(comm).decode()}")
stream.synchronize()
print(f"stream ended after {time.monotonic() - begin:.3f} s")
assert (
    api.result(
        "AllReduce", data.data_ptr(), data.data_ptr(), 1000, FLOAT32, SUM, comm, stream.cuda_stream
    )
    == nccl.REMOTE
)
api.CommAbort(comm)
print("all done")
os._exit(0)  # without TCPStore's own complaints
