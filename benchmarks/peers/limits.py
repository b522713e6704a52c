"""The machine's own limits, and the shortest time that they allow an operation."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from machine import run_program

HERE = Path(__file__).resolve().parent
SIZES = [4096 * 4**power for power in range(8)]  # 4 KiB to 64 MiB
ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})


@dataclass(frozen=True)
class Limits:
    line_one_way_us: float  # a cache line written by one core is seen by another
    line_stream_us: float  # per line, when many are on the way at once
    switch_us: float  # a process yields its core to another
    copy_gb_per_s: tuple[tuple[int, float], ...]  # by size, one core
    read_gb_per_s: tuple[tuple[int, float], ...]
    single_copy: bool  # the kernel lets a process read another's memory

    @classmethod
    def from_json(cls, facts: dict[str, object]) -> Limits:
        def curve(key: str) -> tuple[tuple[int, float], ...]:
            points = facts[key]
            assert isinstance(points, list)
            return tuple((int(p["size"]), float(p["gb_per_s"])) for p in points)

        def number(key: str) -> float:
            value = facts[key]
            assert isinstance(value, int | float)
            return value / 1e3

        return cls(
            number("line_one_way_ns"),
            number("line_stream_ns"),
            number("switch_ns"),
            curve("copy"),
            curve("read"),
            bool(facts["single_copy"]),
        )


def measure(build: Path, cpus: list[int]) -> dict[str, object]:
    """Builds and runs limits.c; the facts as it prints them."""
    build.mkdir(parents=True, exist_ok=True)
    program = build / "limits"
    flags = ["-std=c11", "-O2", "-march=native", "-pthread"]
    run_program(["cc", *flags, str(HERE / "limits.c"), "-o", str(program)])
    command = [str(program), str(cpus[0]), str(cpus[-1]), *(str(size) for size in SIZES)]
    facts = json.loads(run_program(command))
    assert isinstance(facts, dict)
    return facts


def better(one: dict[str, object], other: dict[str, object]) -> dict[str, object]:
    """The best of two measurements, figure by figure: noise only ever slows a machine down."""
    merged: dict[str, object] = {}
    for key, left in one.items():
        right = other[key]
        if isinstance(left, list) and isinstance(right, list):
            pairs = zip(left, right, strict=True)
            merged[key] = [max(a, b, key=lambda point: float(point["gb_per_s"])) for a, b in pairs]
        elif isinstance(left, bool):
            merged[key] = left
        else:
            assert isinstance(left, int | float) and isinstance(right, int | float)
            merged[key] = min(left, right)
    return merged


def best_rate(curve: tuple[tuple[int, float], ...], size: float) -> float:
    """GB/s that buffers of `size` bytes may reach: never below what larger ones reach."""
    return max((rate for at, rate in curve if at >= size), default=curve[-1][1])


def bytes_touched(operation: str, ranks: int, size: int, in_place: bool) -> tuple[int, int]:
    """Bytes that all ranks together must at least write to outputs and read from inputs.

    `size` is nccl-tests' column: the larger of the bytes that a rank sends and receives. In place a
    rank's own block is where it belongs: nobody copies it.
    """
    everywhere = ranks * size
    written = {
        "all_gather": everywhere,
        "all_reduce": everywhere,
        "all_to_all": everywhere,
        "sendrecv": everywhere,
        "broadcast": (ranks - 1) * size,  # in place: the root writes nothing
    }.get(operation, size)
    read = size if operation in ("all_gather", "broadcast", "gather", "scatter") else everywhere
    if in_place and operation == "all_gather":
        written -= size
    if in_place and operation in ("gather", "scatter"):
        return written - size // ranks, read - size // ranks
    return written, read


def bound_us(
    limits: Limits,
    operation: str,
    ranks: int,
    cores: int,
    size: int,
    blocking: bool,
    fresh: bool,
    in_place: bool = False,
) -> float:
    """No library can run `operation` faster, on average over a back-to-back loop.

    Latency: if every rank needs data of every other, an iteration takes at least one hop, and each
    core must have switched through its ranks: a rank on its core can start one iteration more than
    the slowest other has started, so k ranks of a core take k - 1 switches an iteration. In a ring
    (sendrecv) each may be one ahead of its predecessor only, so that one round of switches carries
    as many iterations as there are ranks. Where data flows one way (from or to a root), the sender
    may run ahead, so only the rate of cache lines bounds a loop without barriers. Bandwidth: the
    bytes that must be written (or read) at one core's copy (or read) bandwidth, spread over all
    cores: `fresh` data at that of memory. The bound is the largest of these, not their sum, since
    they may overlap.
    """
    hops = (0 if operation in ROOTED else 1) + (1 if blocking else 0)
    cores = min(cores, ranks)
    crowd = -(-ranks // cores)  # ranks on the fullest core
    switches = float(crowd - 1)
    if operation == "sendrecv" and not blocking:
        switches = crowd / ranks if crowd > 1 else 0.0
    switch_us = switches * limits.switch_us if hops else 0.0
    latency_us = max(hops * limits.line_one_way_us, switch_us, limits.line_stream_us)
    written, read = (total / cores for total in bytes_touched(operation, ranks, size, in_place))
    held = float(SIZES[-1]) if fresh else 0.0
    write_us = written / best_rate(limits.copy_gb_per_s, max(written, held)) / 1e3
    read_us = read / best_rate(limits.read_gb_per_s, max(read, held)) / 1e3
    return max(latency_us, write_us, read_us)
