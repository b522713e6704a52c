"""Which GPU, CPUs, memory and NIC belong to a rank, and binding this process to them."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Optional

from ropewalk import errors
from ropewalk._library import json_of, library
from ropewalk.drawing.machine import short_model
from ropewalk.topology import Topology

# set_mempolicy(2) has no wrapper in the C library; numaif.h has the policies.
_SET_MEMPOLICY: Final = {"x86_64": 238, "aarch64": 237, "ppc64le": 261}
_PREFERRED: Final = 1
_BIND: Final = 2


@dataclass(frozen=True)
class Choice:
    """The resources of one rank."""

    gpu: Optional[str]
    """id of its node"""
    device: Optional[int]
    """the GPU's number for CUDA, among those that are visible"""
    gpu_words: str
    numa: Optional[int]
    cpus: frozenset[int]
    """those that the process may use; empty: leave as it is"""
    nic: str
    """its name for the system; "" where there is none"""
    nic_path: str
    notes: list[str] = field(default_factory=list)

    def words(self, *, with_cpus: bool = True) -> str:
        """One line for people."""
        parts = [f"GPU {self.device} ({self.gpu_words})" if self.gpu else "no GPU"]
        if with_cpus and self.cpus:
            parts.append(f"CPUs {cpu_ranges(self.cpus)}")
        if self.numa is not None:
            parts.append(f"NUMA {self.numa}")
        parts.append(f"NIC {self.nic} ({self.nic_path})" if self.nic else "no NIC")
        return ", ".join(parts)


def local_rank() -> tuple[Optional[int], Optional[int]]:
    """Local rank and number of local ranks, if the launcher gives them."""
    found = json_of(library().rwLaunchDescribe)
    if found["launcher"] == "none":
        return _told_in_part(os.environ)
    rank, size = found["local_rank"], found["local_size"]
    if rank < 0:
        raise errors.UsageError(
            f"{found['launcher']} does not tell the rank within this host: give --local-rank and "
            "--local-size"
        )
    return rank, size if size > 0 else None


def _told_in_part(environment: Mapping[str, str]) -> tuple[Optional[int], Optional[int]]:
    """As `local_rank`, from what is set without the variables that name a job of several ranks."""
    pairs = (("LOCAL_RANK", "LOCAL_WORLD_SIZE"), ("SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"))
    for rank_name, size_name in pairs:
        if rank_name not in environment:
            continue
        rank = _number(environment, rank_name)
        size = _number(environment, size_name) if size_name in environment else None
        if size is None and rank_name == "SLURM_LOCALID" and environment.get("SLURM_NNODES") == "1":
            size = _number(environment, "SLURM_NTASKS") if "SLURM_NTASKS" in environment else None
        return rank, size
    return None, None


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment[name]
    if not (text.isascii() and text.isdigit()):
        raise errors.ArgumentError(f'{name}="{text[:64]}" is not a number')
    return int(text)


def choose(
    machine: Topology,
    rank: int,
    size: int,
    *,
    share_cpus: bool = False,
    environment: Optional[Mapping[str, str]] = None,
    usable_cpus: Optional[set[int]] = None,
) -> Choice:
    """What local rank `rank` of `size` gets on the machine's first host.

    Args:
        machine: the machine; of several hosts, the first counts.
        rank: number among the ranks of this host.
        size: how many those are.
        share_cpus: divide a NUMA node's CPUs among its ranks.
        environment: where CUDA_VISIBLE_DEVICES is looked up; this process' own when None.
        usable_cpus: those that the process may use; found out when None.
    """
    notes: list[str] = []
    visible, machine = _visible(machine, os.environ if environment is None else environment, notes)
    placed = machine.place(size)
    mine = placed[rank]
    usable = set(os.sched_getaffinity(0)) if usable_cpus is None else usable_cpus
    cpus = _parsed(mine.cpus) & usable
    if mine.cpus and not cpus:
        notes.append(f"none of the CPUs {mine.cpus} may be used by this process: left as it is")
    if share_cpus and cpus:
        sharing = [i for i, each in enumerate(placed) if each.cpu == mine.cpu]
        cpus = _share(sorted(cpus), sharing.index(rank), len(sharing))
    gpu = machine.node(mine.gpu) if mine.gpu else None
    count = len([node for node in machine.gpus if node.host == 0])
    if gpu is not None and size > count:
        notes.append(f"{size} ranks share {count} GPUs")
    words = ""
    if gpu is not None:
        words = ", ".join(part for part in (short_model(gpu.model), gpu.bus_id) if part) or gpu.id
    nic = machine.node(mine.nics[0]) if mine.nics else None
    return Choice(
        gpu=mine.gpu,
        device=None if gpu is None else visible.get(gpu.id, rank % max(count, 1)),
        gpu_words=words,
        numa=mine.numa,
        cpus=frozenset(cpus),
        nic="" if nic is None else nic.device or nic.id,
        nic_path=mine.nic_path or "",
        notes=notes,
    )


def _visible(
    machine: Topology, environment: Mapping[str, str], notes: list[str]
) -> tuple[dict[str, int], Topology]:
    """CUDA's numbers by GPU id, and the machine with the visible GPUs alone.

    A list that somebody else made (Slurm gives each task its GPUs) is respected.
    """
    on_host = [node for node in machine.gpus if node.host == 0]
    text = environment.get("CUDA_VISIBLE_DEVICES")
    if text is None or not on_host:
        return {node.id: i for i, node in enumerate(on_host)}, machine
    try:
        wanted = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        notes.append(f"CUDA_VISIBLE_DEVICES={text} names no numbers: taken for all GPUs")
        return {node.id: i for i, node in enumerate(on_host)}, machine
    by_index = {int(n.attributes.get("gpu.dev", i)): n for i, n in enumerate(on_host)}
    kept = [by_index[index] for index in wanted if index in by_index]
    if not kept:
        notes.append(f"CUDA_VISIBLE_DEVICES={text} leaves no GPU of this machine: taken for all")
        return {node.id: i for i, node in enumerate(on_host)}, machine
    notes.append(f"CUDA_VISIBLE_DEVICES={text}: {len(kept)} of {len(on_host)} GPUs")
    ranks = [node.rank for node in kept if node.rank is not None]
    return {node.id: i for i, node in enumerate(kept)}, machine.select(gpus=ranks)


def _share(cpus: list[int], index: int, count: int) -> set[int]:
    """Part `index` of `count`; with fewer CPUs than parts, one CPU, round robin."""
    if len(cpus) < count:
        return {cpus[index % len(cpus)]}
    return set(cpus[index * len(cpus) // count : (index + 1) * len(cpus) // count])


def _parsed(cpus: str) -> set[int]:
    found: set[int] = set()
    for part in cpus.split(",") if cpus else []:
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def cpu_ranges(cpus: frozenset[int]) -> str:
    """{0, 1, 2, 8} as "0-2,8"."""
    parts: list[str] = []
    ordered = sorted(cpus)
    begin = 0
    for i, cpu in enumerate(ordered):
        if i + 1 < len(ordered) and ordered[i + 1] == cpu + 1:
            continue
        parts.append(str(cpu) if begin == i else f"{ordered[begin]}-{cpu}")
        begin = i + 1
    return ",".join(parts)


def set_memory_policy(node: int, *, strict: bool) -> None:
    """This process' memory from NUMA node `node` first, or alone; what it becomes keeps that.

    Raises:
        OSError: the system forbids it, or there is no such node.
    """
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None:
        raise OSError(38, f"set_mempolicy is not known on {platform.machine()}")
    bits = 8 * ctypes.sizeof(ctypes.c_ulong)
    words = node // bits + 1
    mask = (ctypes.c_ulong * words)()
    mask[node // bits] = 1 << (node % bits)
    libc = ctypes.CDLL(None, use_errno=True)
    policy = _BIND if strict else _PREFERRED
    # The kernel reads one bit less than the given number.
    if libc.syscall(number, policy, ctypes.byref(mask), words * bits + 1) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
