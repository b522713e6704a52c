"""`ropewalk bind`: run a rank on the CPUs, memory and NIC that are next to its GPU."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Annotated, Optional

import typer

from ropewalk import placement
from ropewalk.cli import console
from ropewalk.cli.machine_source import FromOption, machine
from ropewalk.placement import Choice

HELP = """
Run a rank with the GPU, CPUs, memory and NIC that the machine's topology says belong to it.

The rank is that of the launcher: torchrun, mpirun or srun start `ropewalk bind -- CMD` in place of
CMD. It prints what it chose, binds the process to the CPUs of the GPU's NUMA node, prefers that
node's memory, and becomes CMD.

The GPU is told by LOCAL_RANK and by its number among the visible GPUs, which is printed; programs
choose by it, as torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) does. CUDA_VISIBLE_DEVICES
stays as it is: ranks that hide each other's GPUs cannot reach them directly. CUDA_DEVICE_ORDER
becomes PCI_BUS_ID unless it is set, so that CUDA counts GPUs as the topology does.

Examples:

\b
  torchrun --nproc-per-node 8 --no-python ropewalk bind -- python train.py
  mpirun -n 8 ropewalk bind -- python train.py
  srun -n 8 ropewalk bind --cpus share -- ./program
      each rank its own part of the CPUs
  ropewalk bind --local-rank 3 --local-size 8 --dry-run
      only say what rank 3 of 8 would get
  mpirun -n 8 ropewalk bind --nic-env NCCL_IB_HCA -- python train.py
      tell NCCL to use the nearest NIC alone

Exit status: CMD's; 2 when the options or the launcher's variables are wrong; 3 when CMD cannot be
run.
"""


def bind(
    command: Annotated[
        Optional[list[str]], typer.Argument(metavar="-- CMD [ARG...]", help="What to run.")
    ] = None,
    from_file: FromOption = None,
    local_rank: Annotated[
        Optional[int],
        typer.Option("--local-rank", help="Number among the ranks of this host."),
    ] = None,
    local_size: Annotated[
        Optional[int], typer.Option("--local-size", help="How many ranks this host has.")
    ] = None,
    cpus: Annotated[
        str,
        typer.Option(
            "--cpus",
            help="node: all CPUs of the NUMA node; share: a part of them for each of its ranks; "
            "none: as they are.",
        ),
    ] = "node",
    memory: Annotated[
        str,
        typer.Option(
            "--memory",
            help="prefer: the node's memory first; bind: it alone; none: as it is.",
        ),
    ] = "prefer",
    nic_env: Annotated[
        Optional[list[str]],
        typer.Option(
            "--nic-env", metavar="NAME", help="Set this variable to the NIC's name. Repeatable."
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not print the choice.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the choice, and run nothing.")
    ] = False,
) -> None:
    """See HELP."""
    console.apply_settings(None)
    if cpus not in ("node", "share", "none"):
        console.fail(f"--cpus {cpus}: node, share or none", console.USAGE)
    if memory not in ("prefer", "bind", "none"):
        console.fail(f"--memory {memory}: prefer, bind or none", console.USAGE)
    if not command and not dry_run:
        console.fail("bind: what to run? For example: bind -- python train.py", console.USAGE)
    with console.reported():
        who = _who(local_rank, local_size)
        choice = placement.choose(
            machine(from_file, None), who.rank, who.size, share_cpus=cpus == "share"
        )
    said = [f"local rank {who.rank} of {who.size}: {choice.words(with_cpus=cpus != 'none')}"]
    if not dry_run:
        if cpus != "none" and choice.cpus:
            said += _tried(lambda: os.sched_setaffinity(0, choice.cpus), "binding to CPUs")
        if memory != "none" and choice.numa is not None:
            node = choice.numa
            said += _tried(
                lambda: placement.set_memory_policy(node, strict=memory == "bind"),
                f"memory of NUMA node {node}",
            )
    if memory != "none" and choice.numa is not None:
        said[0] += f", memory {'of' if memory == 'bind' else 'preferably of'} NUMA {choice.numa}"
    if not quiet:
        for line in [*said, *choice.notes]:
            print(f"ropewalk: {line}", file=sys.stderr, flush=True)
    if dry_run or not command:
        return
    environment = _environment(choice, who.rank, nic_env or [])
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        console.fail(f"{command[0]}: {error.strerror}")


@dataclass(frozen=True)
class _Who:
    rank: int
    size: int


def _who(local_rank: Optional[int], local_size: Optional[int]) -> _Who:
    """The options, else what the launcher tells; alone: the only rank."""
    told_rank, told_size = placement.local_rank()
    rank = told_rank if local_rank is None else local_rank
    size = told_size if local_size is None else local_size
    if rank is None:
        rank = 0
    if size is None:
        size = rank + 1
    if not 0 <= rank < size:
        console.fail(f"local rank {rank} is not one of {size}", console.USAGE)
    return _Who(rank, size)


def _tried(action: object, what: str) -> list[str]:
    """Runs it; a refusal (containers forbid some of this) is said, and the rank runs on."""
    assert callable(action)
    try:
        action()
    except OSError as error:
        return [f"{what} is not possible here: {error.strerror}"]
    return []


def _environment(choice: Choice, rank: int, nic_env: list[str]) -> dict[str, str]:
    environment = dict(os.environ)
    environment.setdefault("LOCAL_RANK", str(rank))
    environment.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    if choice.nic:
        for name in nic_env:
            environment[name] = choice.nic
    return environment
