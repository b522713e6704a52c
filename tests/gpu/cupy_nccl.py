"""CuPy's nccl module: all GPUs in one process, and its own list of versions and errors."""

from __future__ import annotations

import cupy
from cupy.cuda import nccl

n = cupy.cuda.runtime.getDeviceCount()
assert nccl.get_version() == 22809, nccl.get_version()
comms = nccl.NcclCommunicator.initAll(n)
data, streams = [], []
for g in range(n):
    with cupy.cuda.Device(g):
        streams.append(cupy.cuda.Stream(non_blocking=True))
        data.append(cupy.full(100_000, g + 1, dtype=cupy.float32))
        cupy.cuda.runtime.deviceSynchronize()
nccl.groupStart()
for g, comm in enumerate(comms):
    assert comm.rank_id() == g
    assert comm.device_id() == g
    comm.allReduce(
        data[g].data.ptr,
        data[g].data.ptr,
        100_000,
        nccl.NCCL_FLOAT32,
        nccl.NCCL_SUM,
        streams[g].ptr,
    )
nccl.groupEnd()
for g in range(n):
    with cupy.cuda.Device(g):
        streams[g].synchronize()
        assert bool((data[g] == n * (n + 1) / 2).all())
for comm in comms:
    comm.destroy()
print("all done")
