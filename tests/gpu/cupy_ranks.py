"""CuPy's nccl module, a process for each rank: FILE carries the communicator's id."""

from __future__ import annotations

import os
import pickle
import sys
import time
from pathlib import Path

import cupy
from cupy.cuda import nccl

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
cupy.cuda.Device(int(os.environ["LOCAL_RANK"])).use()
meeting = Path(sys.argv[1])
if rank == 0:
    made = nccl.get_unique_id()
    beside = meeting.with_suffix(".new")
    beside.write_bytes(pickle.dumps(made))
    beside.rename(meeting)
else:
    for _ in range(600):
        if meeting.exists():
            break
        time.sleep(0.1)
    made = pickle.loads(meeting.read_bytes())
comm = nccl.NcclCommunicator(size, made, rank)
assert comm.rank_id() == rank
data = cupy.full(100_000, rank + 1, dtype=cupy.float32)
stream = cupy.cuda.Stream(non_blocking=True)
cupy.cuda.runtime.deviceSynchronize()
for _ in range(3):
    comm.allReduce(
        data.data.ptr, data.data.ptr, 100_000, nccl.NCCL_FLOAT32, nccl.NCCL_MAX, stream.ptr
    )
    comm.broadcast(data.data.ptr, data.data.ptr, 100_000, nccl.NCCL_FLOAT32, size - 1, stream.ptr)
stream.synchronize()
assert bool((data == size).all())
comm.destroy()
print("all done")
