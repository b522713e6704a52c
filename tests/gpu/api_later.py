"""What NCCL's API got after 2.28, three processes: the first two begin, the third joins by growing.

Processes share GPUs where there are fewer than three.
"""

from __future__ import annotations

import ctypes
import os
import time

import nccl
import torch
import torch.distributed as dist
from nccl import FLOAT32, SUM, Comm, Nccl, UniqueId

api = Nccl(nccl.load())
rank = int(os.environ["RANK"])
device = rank % torch.cuda.device_count()
torch.cuda.set_device(device)
stream = torch.cuda.current_stream().cuda_stream
store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), 3, rank == 0)
ELEMENTS = 1 << 16
BYTES = 4 * ELEMENTS
kept: list[ctypes.c_void_p] = []


class Properties(ctypes.Structure):
    """ncclCommProperties_t of 2.32.3."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        *((name, ctypes.c_int) for name in ("rank", "ranks", "cuda", "nvml")),
        ("device_api", ctypes.c_bool),
        ("multimem", ctypes.c_bool),
        ("gin", ctypes.c_int),
        ("lsa_teams", ctypes.c_int),
        ("host_rma", ctypes.c_bool),
        ("railed_gin", ctypes.c_int),
        ("hash", ctypes.c_uint64),
        ("rest", ctypes.c_byte * 88),
    ]


class Team(ctypes.Structure):
    _fields_ = [("ranks", ctypes.c_int), ("rank", ctypes.c_int), ("stride", ctypes.c_int)]


class Wishes(ctypes.Structure):
    """ncclCollConfig_t of 2.31."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("extension", ctypes.c_void_p),
        *((name, ctypes.c_int) for name in ("least", "most", "nvls", "cluster")),
        ("algorithm", ctypes.c_char_p),
        ("force", ctypes.c_int),
        ("policy", ctypes.c_int),
        ("tag", ctypes.c_uint64),
    ]


SIZE = ctypes.c_size_t


def shared(key: str, value: str) -> bytes:
    """What rank 0 puts into the store."""
    if rank == 0:
        store.set(key, value)
    return bytes(store.get(key))


def make_id(comm: Comm | None = None) -> bytes:
    made = UniqueId()
    if comm is None:
        api.GetUniqueId(ctypes.byref(made))
    else:
        api.CommGetUniqueId(comm, ctypes.byref(made))
    return bytes(made)


def properties(comm: Comm, size: int = ctypes.sizeof(Properties)) -> Properties:
    given = Properties(size=size, magic=0xCAFEBEEF, version=23203, railed_gin=77)
    api.CommQueryProperties(comm, ctypes.byref(given))
    return given


def team(name: str, comm: Comm) -> tuple[int, int, int]:
    function = getattr(api.library, "ncclTeam" + name)
    function.argtypes, function.restype = [Comm], Team
    found = function(comm)
    return found.ranks, found.rank, found.stride


def pointer(name: str, *arguments: object) -> tuple[int, int | None]:
    place = ctypes.c_void_p(1)
    return api.result(name, *arguments, ctypes.byref(place)), place.value


def all_reduce(comm: Comm, wishes: Wishes | None = None) -> float:
    data = torch.full((ELEMENTS,), float(rank + 1), device="cuda")
    place = ctypes.c_void_p(data.data_ptr())
    if wishes is None:
        api.AllReduce(place, place, ELEMENTS, FLOAT32, SUM, comm, stream)
    else:
        given = (place, place, SIZE(ELEMENTS), FLOAT32, SUM, comm, ctypes.c_void_p(stream))
        api.AllReduceConfig(*given, ctypes.byref(wishes))
    torch.cuda.synchronize()
    value = float(data[0].item())
    assert bool((data == value).all())
    return value


def ask(comm: Comm, size: int, world_rank: int) -> int:
    """Properties, teams, memory. Returns the number that tells communicators apart."""
    found = properties(comm)
    assert (found.rank, found.ranks, found.cuda) == (world_rank, size, device)
    assert found.nvml >= -1
    assert (found.device_api, found.multimem, found.gin, found.host_rma) == (False, False, 0, True)
    assert found.railed_gin == 0
    short = properties(comm, Properties.railed_gin.offset)
    assert (short.ranks, short.railed_gin) == (size, 77), (
        "beyond a caller's size nothing is written"
    )
    assert team("World", comm) == (size, world_rank, 1)
    lsa, rail = team("Lsa", comm), team("Rail", comm)
    assert lsa in ((size, world_rank, 1), (1, 0, 1)), lsa
    assert rail == ((1, 0, size) if lsa[0] == size else (size, world_rank, 1)), rail
    assert found.lsa_teams == size // lsa[0]
    arguments = (comm, Team(size, world_rank, 1), size - 1)
    for name in ("RankToWorld", "RankToLsa"):
        getattr(api.library, "ncclTeam" + name).argtypes = [Comm, Team, ctypes.c_int]
    assert api.result("TeamRankToWorld", *arguments) == size - 1
    assert api.result("TeamRankToLsa", *arguments) == lsa[1] + size - 1 - world_rank
    statistics = []
    for stat in range(4):
        value = ctypes.c_uint64(9)
        api.CommMemStats(comm, stat, ctypes.byref(value))
        statistics.append(value.value)
    assert statistics[:2] == [0, 0] and statistics[2] == statistics[3] > 1 << 14, statistics
    assert api.result("CommMemStats", comm, 4, ctypes.byref(value)) == nccl.ARGUMENT
    return int(found.hash)


class View:
    """Memory as PyTorch takes it."""

    def __init__(self, address: int, elements: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (elements,), "typestr": "<f4", "data": (address, False), "version": 3,
        }  # fmt: skip


def read(address: int, elements: int) -> torch.Tensor:
    return torch.as_tensor(View(address, elements), device="cuda")


def windows(comm: Comm, size: int) -> None:
    """Each rank reads the others' memory at the addresses that its window gives."""
    memory = ctypes.c_void_p()
    api.MemAlloc(ctypes.byref(memory), BYTES)
    assert memory.value is not None
    read(memory.value, ELEMENTS).copy_(torch.arange(ELEMENTS, device="cuda") + 1000.0 * rank)
    torch.cuda.synchronize()
    own = BYTES - 256 * rank  # sizes differ
    window = ctypes.c_void_p()
    api.CommWindowRegister(comm, memory, own, ctypes.byref(window), 1)
    other = ctypes.c_void_p()
    api.CommWindowRegister(comm, memory, own, ctypes.byref(other), 1)
    assert other.value != window.value
    assert pointer("WinGetUserPtr", comm, window) == (nccl.SUCCESS, memory.value)
    all_reduce(comm)  # all have filled theirs
    reached = team("Lsa", comm)[0] == size
    assert reached == (os.environ.get("NCCL_P2P_DISABLE") != "1")
    for peer in range(size):
        result, address = pointer("GetPeerDevicePointer", window, SIZE(512), peer)
        if peer != rank and not reached:
            assert (result, address) == (nccl.SUCCESS, None)
            assert pointer("GetLsaDevicePointer", window, SIZE(512), 1)[0] == nccl.ARGUMENT
            continue
        assert result == nccl.SUCCESS
        assert address is not None, f"rank {peer} is not reached"
        if peer == rank:
            assert address == memory.value + 512
        expected = torch.arange(128, 256, device="cuda") + 1000.0 * peer
        assert bool((read(address, 128) == expected).all()), peer
        lsa_rank = peer if reached else 0
        assert pointer("GetLsaDevicePointer", window, SIZE(512), lsa_rank) == (result, address)
        last = BYTES - 256 * peer
        assert pointer("GetPeerDevicePointer", window, SIZE(last), peer)[0] == nccl.SUCCESS
        assert pointer("GetPeerDevicePointer", window, SIZE(last + 1), peer)[0] == nccl.ARGUMENT
    assert pointer("GetPeerDevicePointer", window, SIZE(0), size)[0] == nccl.ARGUMENT
    assert pointer("GetLsaDevicePointer", window, SIZE(0), -1)[0] == nccl.ARGUMENT
    assert pointer("GetLsaMultimemDevicePointer", window, SIZE(0)) == (nccl.SUCCESS, None)
    torch.cuda.synchronize()
    all_reduce(comm)  # all have read
    api.CommWindowDeregister(comm, window)
    for gone in (window, ctypes.c_void_p(1)):
        assert pointer("GetPeerDevicePointer", gone, SIZE(0), 0) == (nccl.ARGUMENT, 1)
        assert api.result("CommWindowDeregister", comm, gone) == nccl.ARGUMENT
    api.CommWindowDeregister(comm, other)
    # Freed at the end: what another communicator has open still, this one cannot open anew.
    kept.append(memory)


def begin() -> Comm:
    comm = Comm()
    unique = UniqueId.from_buffer_copy(store.get("id"))
    api.CommInitRank(ctypes.byref(comm), 2, unique, rank)
    number = ask(comm, 2, rank)
    assert int(shared("hash", str(number))) == number, "the same on all ranks"
    assert all_reduce(comm) == 3
    wishes = Wishes(size=64, magic=0xCAFEBEEF, version=23102, least=1, most=4, force=1)
    wishes.nvls = wishes.cluster = wishes.policy = nccl.UNDEF
    assert all_reduce(comm, wishes) == 3
    windows(comm, 2)
    return comm


if rank == 0:
    store.set("id", make_id())
small = begin() if rank < 2 else None

# Grow: rank 1 gives the id.
if rank == 1:
    store.set("grow", make_id(small))
given = UniqueId.from_buffer_copy(store.get("grow"))
grown = Comm()
arguments = [small, 3, None, -1, ctypes.byref(grown), None]
if small is None:
    arguments[2:4] = ctypes.byref(given), rank
elif rank == 1:
    arguments[2] = ctypes.byref(given)
api.CommGrow(*arguments)
number = ask(grown, 3, rank)
assert int(shared("grown hash", str(number))) == number != int(store.get("hash"))
assert all_reduce(grown) == 6
windows(grown, 3)
if small is not None:
    assert all_reduce(small) == 3, "the smaller one lives on"
    window = ctypes.c_void_p()
    memory = ctypes.c_void_p()
    api.MemAlloc(ctypes.byref(memory), BYTES)
    api.CommWindowRegister(small, memory, BYTES, ctypes.byref(window), 0)
    api.CommDestroy(small)
    assert pointer("GetPeerDevicePointer", window, SIZE(0), 0)[0] == nccl.ARGUMENT

# Revoke: ranks 0 and 1 wait for rank 2 in an operation, which revokes instead.
stuck = None
if rank < 2:
    stuck = torch.ones(ELEMENTS, device="cuda")
    place = ctypes.c_void_p(stuck.data_ptr())
    api.AllReduce(place, place, ELEMENTS, FLOAT32, SUM, grown, stream)
store.set(f"called {rank}", "1")
for each in range(3):
    store.get(f"called {each}")
if rank < 2:  # rank 2's revoking may end the call first
    time.sleep(0.5)
assert api.result("CommRevoke", grown, 1) == nccl.ARGUMENT
api.CommRevoke(grown, 0)
api.CommRevoke(grown, 0)
torch.cuda.synchronize()  # the operation has ended
assert api.async_error(grown) == nccl.SUCCESS
data = torch.ones(4, device="cuda")
place = ctypes.c_void_p(data.data_ptr())
assert api.result("AllReduce", place, place, 4, FLOAT32, SUM, grown, stream) == nccl.USAGE
assert b"ncclCommRevoke" in api.library.ncclGetLastError(None)
assert api.result("CommFinalize", grown) == nccl.USAGE
assert api.result("CommSplit", grown, 0, 0, ctypes.byref(Comm()), None) == nccl.USAGE
api.CommDestroy(grown)
for memory in kept:
    api.MemFree(memory)
print("all done")
