"""Which ranks `ropewalk bench` runs on: processes, their threads, and the ranks of a thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Optional

from ropewalk import joining
from ropewalk.cli import bench_schedule, console, launch, process_ranks
from ropewalk.communicator import Communicator

DEFAULT: Final = 2
"""processes on host memory, when nothing says how many"""
_MOST: Final = 4096


@dataclass(frozen=True)
class Ranks:
    """As nccl-tests has it: processes x threads (-t) x ranks of a thread (-g)."""

    by_launcher: bool
    """this process is one of a launcher's; else the processes are yet to be started"""
    threads: int
    per_thread: int
    processes: Optional[int]
    """in all; None: one for each GPU"""
    processes_here: Optional[int]
    """of those, on this host"""

    @property
    def each(self) -> int:
        """Ranks in each process."""
        return self.threads * self.per_thread

    @property
    def here(self) -> Optional[int]:
        """Ranks on this host."""
        return None if self.processes_here is None else self.processes_here * self.each

    def describe(self) -> str:
        """How they come about, where a process has several; else ""."""
        if self.each == 1 or self.processes_here is None:
            return ""
        plural = "" if self.processes_here == 1 else "es"
        return f"{self.processes_here} process{plural}, -t {self.threads}, -g {self.per_thread}"

    def attach(self, comms: list[Communicator]) -> None:
        """Gives the ranks of this process their GPUs, in nccl-tests' order."""
        process = comms[0].rank // self.each
        if self.by_launcher:
            process = joining.local_number(process)
        first, count = process * self.each - comms[0].rank, joining.device_count()
        process_ranks.together(comms, lambda comm: comm.attach((first + comm.rank) % count))


def find(
    ranks: Optional[int],
    nthreads: Optional[int],
    ngpus: Optional[int],
    given: Optional[bench_schedule.Given],
) -> Ranks:
    """From --ranks, -t, -g and --schedule, and the launcher's environment; None was not given."""
    for flag, value in (("--ranks", ranks), ("-t", nthreads), ("-g", ngpus)):
        if value is not None and not 1 <= value <= _MOST:
            console.fail(f"{flag} {value}: must be 1 to {_MOST}", console.USAGE)
    threads, per_thread = nthreads or 1, ngpus or 1
    launched = launch.launched_processes()
    processes = ranks if given is None else _of_schedule(given, ranks, threads * per_thread)
    if launched > 1 and given is not None and processes == launched:
        processes = None  # the schedule's number, and the launcher's
    if launched > 1 and processes is not None:
        console.fail(f"--ranks: a launcher started {launched} ranks already", console.USAGE)
    # One process by a launcher may be a batch job's shell, from which --ranks starts local ranks.
    by_launcher = launched > 0 and processes is None
    if by_launcher:
        found = Ranks(True, threads, per_thread, launched, launch.processes_here())
    else:
        if processes is None and (nthreads is not None or ngpus is not None):
            processes = 1
        found = Ranks(False, threads, per_thread, processes, processes)
    if found.here is not None and found.here > _MOST:
        console.fail(f"{found.here} ranks on this host: at most {_MOST}", console.USAGE)
    return found


def _of_schedule(given: bench_schedule.Given, ranks: Optional[int], each: int) -> int:
    """Processes for a schedule; what the command line says must agree."""
    if given.ranks % each:
        console.fail(f"-t and -g: {given.name} is for {given.ranks} ranks", console.USAGE)
    processes = given.ranks // each
    if ranks is not None and ranks != processes:
        console.fail(f"--ranks {ranks}: {given.name} is for {processes}", console.USAGE)
    return processes
