"""NCCL's C API by ctypes, and the little of CUDA that using it takes.

The library is the one that LD_PRELOAD has put before all others. Memory is PyTorch's.
"""

from __future__ import annotations

import ctypes
import os
import time
from typing import Any

SUCCESS, CUDA_ERROR, ARGUMENT, USAGE, REMOTE, IN_PROGRESS = 0, 1, 4, 5, 6, 7
SUM, PROD, MAX, MIN, AVG = range(5)
FLOAT32, BFLOAT16 = 7, 9
UNDEF = -(2**31)

Comm = ctypes.c_void_p
_SIZE = ctypes.c_size_t
_POINTER = ctypes.c_void_p
_INT = ctypes.c_int


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


class Config(ctypes.Structure):
    """ncclConfig_t of 2.28."""

    _fields_ = [
        ("size", _SIZE),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", _INT),
        ("cga_cluster_size", _INT),
        ("min_ctas", _INT),
        ("max_ctas", _INT),
        ("net_name", ctypes.c_char_p),
        ("split_share", _INT),
        ("traffic_class", _INT),
        ("comm_name", ctypes.c_char_p),
        *((name, _INT) for name in ("collnet", "policy", "shrink_share", "nvls", "chans", "cent")),
    ]

    def __init__(self, blocking: int = UNDEF) -> None:
        super().__init__()
        self.size, self.magic, self.version = ctypes.sizeof(Config), 0xCAFEBEEF, 22809
        for name, kind in Config._fields_[3:]:  # type: ignore[misc]
            setattr(self, name, UNDEF if kind is _INT else None)
        self.blocking = blocking


class LaterConfig(Config):
    """ncclConfig_t of 2.32.3."""

    _fields_ = [
        *((name, _INT) for name in ("graph_usage", "contexts", "p2p_peers", "graph_order")),
        *((name, _INT) for name in ("launch_order", "signals", "eager", "cft", "nvls_host")),
    ]

    def __init__(self, contexts: int, signals: int) -> None:
        super().__init__()
        self.size, self.version = ctypes.sizeof(LaterConfig), 23203
        for name, _ in LaterConfig._fields_:  # type: ignore[misc]
            setattr(self, name, UNDEF)
        self.contexts, self.signals = contexts, signals


class SimInfo(ctypes.Structure):
    _fields_ = [
        ("size", _SIZE),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("estimated_time", ctypes.c_float),
    ]


def load(path: str | None = None) -> Any:
    library = ctypes.CDLL(path or os.environ["RW_NCCL_LIBRARY"])
    library.ncclGetErrorString.restype = ctypes.c_char_p
    library.ncclGetLastError.restype = ctypes.c_char_p
    library.ncclGetLastError.argtypes = [Comm]
    reduce = [_POINTER, _POINTER, _SIZE, _INT, _INT]
    move = [_POINTER, _POINTER, _SIZE, _INT]
    place = [Comm, _POINTER]
    for name, arguments in {
        "CommInitRank": [_POINTER, _INT, UniqueId, _INT],
        "CommInitRankConfig": [_POINTER, _INT, UniqueId, _INT, _POINTER],
        "CommInitRankScalable": [_POINTER, _INT, _INT, _INT, _POINTER, _POINTER],
        "CommInitAll": [_POINTER, _INT, _POINTER],
        "CommSplit": [Comm, _INT, _INT, _POINTER, _POINTER],
        "CommShrink": [Comm, _POINTER, _INT, _POINTER, _POINTER, _INT],
        "CommFinalize": [Comm],
        "CommDestroy": [Comm],
        "CommAbort": [Comm],
        "CommGetAsyncError": [Comm, _POINTER],
        "CommCount": [Comm, _POINTER],
        "CommCuDevice": [Comm, _POINTER],
        "CommUserRank": [Comm, _POINTER],
        "MemAlloc": [_POINTER, _SIZE],
        "MemFree": [_POINTER],
        "CommRegister": [Comm, _POINTER, _SIZE, _POINTER],
        "CommDeregister": [Comm, _POINTER],
        "CommWindowRegister": [Comm, _POINTER, _SIZE, _POINTER, _INT],
        "CommWindowDeregister": [Comm, _POINTER],
        "RedOpCreatePreMulSum": [_POINTER, _POINTER, _INT, _INT, Comm],
        "RedOpDestroy": [_INT, Comm],
        "AllReduce": [*reduce, *place],
        "Reduce": [*reduce, _INT, *place],
        "ReduceScatter": [*reduce, *place],
        "Bcast": [_POINTER, _SIZE, _INT, _INT, *place],
        "Broadcast": [*move, _INT, *place],
        "AllGather": [*move, *place],
        "AlltoAll": [*move, *place],
        "Gather": [*move, _INT, *place],
        "Scatter": [*move, _INT, *place],
        "Send": [_POINTER, _SIZE, _INT, _INT, *place],
        "Recv": [_POINTER, _SIZE, _INT, _INT, *place],
        "GroupSimulateEnd": [_POINTER],
    }.items():
        getattr(library, "nccl" + name).argtypes = arguments
    return library


class Nccl:
    """Calls by their names without `nccl`; a result other than success raises."""

    def __init__(self, library: Any) -> None:
        self.library = library

    def __getattr__(self, name: str) -> Any:
        function = getattr(self.library, "nccl" + name)

        def call(*arguments: Any) -> None:
            result = function(*arguments)
            if result != SUCCESS:
                raise RuntimeError(f"nccl{name}: {result}: {self.library.ncclGetLastError(None)}")

        return call

    def result(self, name: str, *arguments: Any) -> int:
        return int(getattr(self.library, "nccl" + name)(*arguments))

    def async_error(self, comm: Any) -> int:
        error = ctypes.c_int(-1)
        self.CommGetAsyncError(comm, ctypes.byref(error))
        return error.value

    def wait(self, comm: Any, limit_s: float = 60) -> None:
        end = time.monotonic() + limit_s
        while self.async_error(comm) == IN_PROGRESS:
            if time.monotonic() > end:
                raise TimeoutError("still in progress")
            time.sleep(0.002)
        if self.async_error(comm) != SUCCESS:
            raise RuntimeError(f"{self.async_error(comm)}: {self.library.ncclGetLastError(comm)}")
