"""NVIDIA's nccl-tests over each network: built where their source is, and run as they are.

Without MPI they have one process, with a thread for each GPU; that GPUs cannot reach each other's
memory makes NCCL use the network between them all the same.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import machine
from networks import environment_of

PROGRAMS = {
    "all_reduce": "all_reduce_perf",
    "all_gather": "all_gather_perf",
    "reduce_scatter": "reduce_scatter_perf",
    "broadcast": "broadcast_perf",
    "reduce": "reduce_perf",
    "all_to_all": "alltoall_perf",
    "sendrecv": "sendrecv_perf",
}


def build(source: Path) -> Path:
    """@return the folder of the programs"""
    command = ["make", "-C", str(source), "-j", str(os.cpu_count() or 1), "MPI=0"]
    machine.run_program(command, limit_s=900)
    return source / "build"


def command(programs: Path, operation: str, gpus: int) -> list[str]:
    """A program with a thread for each GPU, five repetitions before it times, verified."""
    program = str(programs / PROGRAMS[operation])
    return [program, "-t", str(gpus), "-g", "1", "-w", "5", "-c", "1"]


def environment(network: str, plugin: Path, nccl: Path) -> dict[str, str]:
    """That of networks.environment_of, with this NCCL."""
    path = f"{nccl.parent}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    return {**environment_of(network, plugin), "LD_LIBRARY_PATH": path}


def run(
    args: argparse.Namespace,
    networks: list[str],
    nccl: Path,
    operations: list[str],
    sizes: list[int],
) -> int:
    """Prints each program's own table. @return the exit status"""
    try:
        programs = build(args.nccl_tests)
    except machine.LaunchError as error:
        sys.exit(f"nccl_net: nccl-tests could not be built: {error}")
    begin = time.monotonic()
    failures = 0
    shown = []
    for operation in operations:
        for network in networks:
            left = args.limit_s - (time.monotonic() - begin)
            if left < 5:
                print("cut short by --limit-s", file=sys.stderr)
                break
            started = command(programs, operation, args.gpus)
            started += ["-b", str(min(sizes)), "-e", str(max(sizes)), "-f", "16"]
            started += ["-n", str(args.repetitions)]
            try:
                output = machine.run_program(
                    started, environment(network, args.plugin, nccl), limit_s=left
                )
            except machine.LaunchError as error:
                failures += 1
                output = f"{error}\n{error.output}"
            shown.append(f"{operation} over {network}\n{output}")
            print(shown[-1], flush=True)
    if args.table:
        args.table.write_text("\n".join(shown))
    return 1 if failures else 0
