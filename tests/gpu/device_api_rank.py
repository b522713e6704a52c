"""Kernels with NVIDIA's device header on this communicator: a rank of device_api_gpu_test.py.

Arguments: the libraries that it compiled from device_api.cu, or "refused" without the setting that
kernels need.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys

import nccl
import torch
import torch.distributed as dist
from nccl import Comm, Nccl, UniqueId

api = Nccl(nccl.load())
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank % torch.cuda.device_count())
store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), size, rank == 0)
unique = UniqueId()
if rank == 0:
    api.GetUniqueId(ctypes.byref(unique))
    store.set("id", bytes(unique))
unique = UniqueId.from_buffer_copy(store.get("id"))
comm = Comm()
api.CommInitRank(ctypes.byref(comm), size, unique, rank)


def device_api_support() -> bool:
    """ncclCommProperties_t of 2.32.3, read by its offsets."""
    properties = ctypes.create_string_buffer(struct.pack("<QII", 152, 0xCAFEBEEF, 23203), 152)
    api.CommQueryProperties(comm, properties)
    found_rank, found_size = struct.unpack_from("<ii", properties, 16)
    assert (found_rank, found_size) == (rank, size)
    return properties.raw[32] != 0


def refused() -> None:
    assert not device_api_support()
    request = ctypes.create_string_buffer(56)  # of 2.28: all zero
    device_comm = ctypes.create_string_buffer(256)
    assert api.result("DevCommCreate", comm, request, device_comm) == nccl.USAGE
    said = api.library.ncclGetLastError(None).decode()
    assert "there are no device communicators" in said, said
    assert "ROPEWALK_MEM_ALLOC=pages" in said, said
    assert device_comm.raw == bytes(256)


def run(path: str) -> None:
    library = ctypes.CDLL(path)
    version = library.device_api_version()
    text = ctypes.create_string_buffer(4096)
    ended = library.run_device_api(comm, text, len(text))
    print(f"header {version}: {'ok' if ended else 'FAILED'}: {text.value.decode()}")
    assert ended


if sys.argv[1:] == ["refused"]:
    refused()
else:
    assert device_api_support()
    for library_path in sys.argv[1:]:
        run(library_path)
# A communicator that is whole after all of it.
values = torch.full((1000,), float(rank + 1), device="cuda")
stream = torch.cuda.current_stream().cuda_stream
api.AllReduce(
    values.data_ptr(),
    values.data_ptr(),
    1000,
    nccl.FLOAT32,
    nccl.SUM,
    comm,
    ctypes.c_void_p(stream),
)
torch.cuda.synchronize()
assert bool((values == size * (size + 1) / 2).all())
api.CommDestroy(comm)
print("all done")
