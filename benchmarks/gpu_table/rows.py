"""The rows of the table: what each runs, on how many GPUs, what NCCL gave before, and the aim."""

from __future__ import annotations

from dataclasses import dataclass, field

K, M = 1 << 10, 1 << 20
OTHERS = ("all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "sendrecv")

# For NCCL: nothing but its network, over sockets.
SOCKETS = {
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_NET_PLUGIN": "none",
    "NCCL_NET": "Socket",
    "NCCL_IB_DISABLE": "1",
    "NCCL_SOCKET_IFNAME": "lo",
}
DENIED = "0-3,1-2"


@dataclass(frozen=True)
class Case:
    """One operation of one size."""

    operation: str
    size: int
    launch: str = "stream"
    aim: float | None = None  # us, or GB/s of bus bandwidth where `by_rate`
    by_rate: bool = False
    seen: str = ""  # of NCCL before, or of Ropewalk


@dataclass(frozen=True)
class Row:
    """Cases that run with the same settings, by crews of either library that take turns."""

    name: str
    gpus: int  # that are needed, and used
    cases: tuple[Case, ...]
    mode: str = "process"  # of nccl_loop
    nccl: dict[str, str] | None = field(default_factory=dict)  # variables; None: not run
    ropewalk: dict[str, str] = field(default_factory=dict)
    # Ropewalk's time under `ropewalk` over the one under these settings is the figure.
    against: dict[str, str] | None = None
    ratio_aim: float | None = None  # least of NCCL's time over Ropewalk's, or of `against`'s


# What feels each addition to a call most.
SHORTEST = (
    Case("all_reduce", 8),
    Case("all_reduce", 8, "graph"),
    Case("all_reduce", 64 * K, "graph"),
)

ROWS = (
    Row(
        "as two hosts, shared memory",
        2,
        (
            Case("all_reduce", 8, aim=9, seen="22 to 29 us; our plugin 13"),
            Case("all_reduce", 128 * M, aim=32, by_rate=True, seen="3.2 to 3.6 GB/s; plugin 23.9"),
        ),
        mode="hosts",
        nccl=SOCKETS,
        ropewalk={"ROPEWALK_NET": "shm"},
    ),
    Row(
        "as two hosts, shared memory moved by threads",
        2,
        (Case("all_reduce", 8), Case("all_reduce", 128 * M, by_rate=True)),
        mode="hosts",
        nccl=None,
        ropewalk={"ROPEWALK_NET": "shm"},
        against={"ROPEWALK_NET": "shm", "ROPEWALK_LINKS": "network"},
    ),
    Row(
        "as two hosts, TCP loopback",
        2,
        (
            Case("all_reduce", 8, aim=16, seen="22 us"),
            Case("all_reduce", 128 * M, aim=6, by_rate=True, seen="3.3 GB/s"),
        ),
        mode="hosts",
        nccl=SOCKETS,
        ropewalk={"ROPEWALK_NET": "tcp", "ROPEWALK_SOCKET_IFNAME": "lo"},
    ),
    Row(
        "long, both links at once is the aim",
        2,
        (
            Case("all_reduce", 512 * M, aim=385, by_rate=True, seen="316 GB/s; we 347"),
            Case("broadcast", 512 * M, aim=405, by_rate=True, seen="362 GB/s; we 363"),
        ),
    ),
    Row(
        "without peer access",
        2,
        (
            Case("all_reduce", 8, aim=8, seen="13.6 us"),
            Case("all_reduce", 128 * M, aim=45, by_rate=True, seen="26.5 GB/s; we 38.6"),
        ),
        nccl={"NCCL_P2P_DISABLE": "1"},
        ropewalk={"NCCL_P2P_DISABLE": "1"},
    ),
    Row(
        "one thread, by stream",
        2,
        (Case("all_reduce", 8, aim=6.0, seen="11.9 us; we 7.2"),),
        mode="thread",
    ),
    Row(
        "by graph",
        4,
        (
            Case("all_reduce", 8, "graph", aim=3.0, seen="7.9 us; we 3.3"),
            Case("all_reduce", 64 * K, "graph", aim=4.5, seen="10.5 us; we 5.4"),
        ),
    ),
    Row(
        "all-reduce",
        4,
        (
            Case("all_reduce", 8 * M, aim=270, by_rate=True, seen="213 GB/s; we 220"),
            Case("all_reduce", 32 * M, aim=325, by_rate=True, seen="294 GB/s; we 268"),
            Case("all_reduce", 128 * M, aim=350, by_rate=True, seen="329 GB/s; we 298"),
            Case("all_reduce", 512 * M, aim=360, by_rate=True, seen="348 GB/s; we 319"),
        ),
    ),
    Row(
        "all others from 8 MiB on",
        4,
        tuple(Case(name, size) for name in OTHERS for size in (8 * M, 32 * M, 128 * M, 512 * M)),
        ratio_aim=1.05,
    ),
    Row(
        f"ring beside denied pairs ({DENIED}) over a ring without",
        4,
        (Case("all_reduce", 128 * M, by_rate=True), Case("all_gather", 128 * M, by_rate=True)),
        nccl=None,
        ropewalk={"ROPEWALK_PEER_ACCESS_DENY": DENIED, "ROPEWALK_ALGORITHM": "ring"},
        against={"ROPEWALK_ALGORITHM": "ring"},
        ratio_aim=0.9,
    ),
    Row(
        "pair 0-1 denied, three ranks: what is chosen over a ring",
        3,
        (Case("all_reduce", 128 * M, by_rate=True), Case("all_reduce", 8)),
        nccl=None,
        ropewalk={"ROPEWALK_PEER_ACCESS_DENY": "0-1"},
        against={"ROPEWALK_PEER_ACCESS_DENY": "0-1", "ROPEWALK_ALGORITHM": "ring"},
    ),
    Row(
        "times of the GPU in records over none",
        2,
        SHORTEST,
        nccl=None,
        ropewalk={"ROPEWALK_TRACE_GPU": "1"},
        against={"ROPEWALK_TRACE_GPU": "0"},
        ratio_aim=0.98,
    ),
    Row(
        "records of calls, as by default, over none",
        2,
        SHORTEST,
        nccl=None,
        ropewalk={"ROPEWALK_TRACE": "ring"},
        against={"ROPEWALK_TRACE": "off"},
        ratio_aim=0.98,
    ),
    Row(
        "NVLink and the host's memory over NVLink alone",
        2,
        (
            Case("all_reduce", 128 * M, by_rate=True),
            Case("all_reduce", 512 * M, by_rate=True),
            Case("broadcast", 512 * M, by_rate=True),
        ),
        nccl=None,
        ropewalk={"ROPEWALK_HYBRID": "auto"},
        against={},
        ratio_aim=1.0,
    ),
)
