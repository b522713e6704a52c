"""`ropewalk trace`: the load of a job's hosts over time, with its collectives."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Annotated, Final, NoReturn, Optional

import typer

from ropewalk.calls import Reports
from ropewalk.calls.status import words_of
from ropewalk.cli import console
from ropewalk.cli.command_beside import run_beside
from ropewalk.launching.hosts import Host, read_hosts
from ropewalk.trace import collectives
from ropewalk.trace.recording import Recording
from ropewalk.trace.source import Sample, Source, this_host

HELP: Final = """
Run a command, and record meanwhile what its hosts are busy with.

Every 200 ms (--interval) each host's processors, memory, network interfaces, RDMA ports and NVIDIA
GPUs are sampled: utilization, memory, bytes over PCIe and NVLink. This host is sampled, and with
--hosts those of a file, by ssh: they need Python 3.9 or newer as python3, and nothing is copied to
them. All times are on this host's clock. The calls of Ropewalk's communicators are laid over
(settings TRACE_FILE, TRACE_RECORDS, and TRACE_GPU=1 unless it is set), of ranks that write their
records where this command can read them.

The command has this terminal, its signals, and its exit status is this one's. When the trace cannot
go on, as with a full disk, this is told, and the command runs on.

Under a launcher (ropewalk launch, torchrun, mpirun) the first rank of each host samples, and the
others only run the command; give the files names with %h, the host, where there are several.

Examples:

\b
  ropewalk trace -o run.json -- ropewalk bench all_reduce --ranks 2
      for ui.perfetto.dev or chrome://tracing
  ropewalk trace -o run.json --csv run.csv --plot run.svg -- torchrun --nproc-per-node 8 train.py
      also a table and a picture
  ropewalk trace --hosts hosts.txt -o run.json -- ropewalk launch --hosts hosts.txt -- ./program
      all hosts of a job

The exit status is the command's, 128 and the signal's number where a signal ended it; 2 for a wrong
command line, 126 or 127 when the command cannot be started.
"""

# Until all hosts have begun to sample: the command starts then.
_START_SECONDS: Final = 5.0
_RECORDS: Final = "65536"


def trace(
    command: Annotated[
        list[str],
        typer.Argument(metavar="COMMAND...", help="The program and its arguments, after --."),
    ],
    out: Annotated[
        Path, typer.Option("-o", "--output", help="File for Chrome's trace events.")
    ] = Path("trace.json"),
    csv_file: Annotated[
        Optional[Path], typer.Option("--csv", help="Write the samples to this table, too.")
    ] = None,
    plot: Annotated[
        Optional[Path], typer.Option("--plot", help="Draw them (.svg, .png, .pdf).")
    ] = None,
    interval: Annotated[float, typer.Option("--interval", help="Seconds between samples.")] = 0.2,
    hosts: Annotated[
        Optional[Path], typer.Option("--hosts", help="File of hosts that are sampled, too.")
    ] = None,
    ssh: Annotated[str, typer.Option("--ssh", help="The program ssh, with options.")] = "ssh",
    no_calls: Annotated[
        bool, typer.Option("--no-calls", help="Do not record the calls of communicators.")
    ] = False,
) -> None:
    """See HELP."""
    if not 0.01 <= interval <= 3600:
        console.fail(f"--interval {interval:g}: must be from 0.01 to 3600", console.USAGE)
    if plot is not None and plot.suffix not in (".svg", ".png", ".pdf"):
        console.fail(f"--plot {plot}: must end in .svg, .png or .pdf", console.USAGE)
    local_rank, several_hosts = _launched()
    if local_rank > 0:
        _become(command)
    if several_hosts and hosts is None and "%h" not in out.name:
        console.fail(f"-o {out}: needs %h, the host's name: each host writes one", console.USAGE)
    out = _named(out)
    csv_file = None if csv_file is None else _named(csv_file)
    plot = None if plot is None else _named(plot)
    with console.reported():
        others = [] if hosts is None else [each for each in read_hosts(hosts) if not each.is_local]
        words = words_of(ssh)
    try:
        recording = Recording(out, csv_file, time.monotonic_ns(), time.time_ns())
    except OSError as error:
        console.fail(f"{error.filename}: {error.strerror}", console.USAGE)
    status = _Run(recording, [this_host(), *others], interval, words).run(
        command, out, plot, calls=not no_calls
    )
    if status != 0:
        raise typer.Exit(status)


def _launched() -> tuple[int, bool]:
    """This process's number on its host (0 without a launcher), and whether there are others."""

    def number(*names: str) -> Optional[int]:
        return next((int(os.environ[n]) for n in names if os.environ.get(n, "").isdigit()), None)

    rank = number("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
    here = number("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
    size = number("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
    return rank or 0, here is not None and size is not None and size > here


def _named(path: Path) -> Path:
    if "%h" not in path.name:
        return path
    return path.with_name(path.name.replace("%h", socket.gethostname().partition(".")[0]))


def _become(command: list[str]) -> NoReturn:
    try:
        os.execvp(command[0], command)
    except FileNotFoundError:
        console.fail(f"{command[0]}: not found", 127)
    except OSError as error:
        console.fail(f"{command[0]}: {error.strerror}", 126)


class _Run:
    """The command, and the samplers beside it."""

    def __init__(
        self, recording: Recording, hosts: list[Host], interval: float, ssh: list[str]
    ) -> None:
        self._recording = recording
        self._hosts = hosts
        self._interval = interval
        self._ssh = ssh
        self._sources: list[Source] = []
        self._begun = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._told: set[str] = set()

    def run(self, command: list[str], out: Path, plot: Optional[Path], *, calls: bool) -> int:
        """Returns the command's exit status."""
        spent = time.process_time()
        self._start_samplers()
        folder = out.with_name(out.name + ".calls").absolute()
        environment, pattern = _environment(folder, calls)
        began, since = time.monotonic(), time.time()
        status = run_beside(command, environment)
        seconds = time.monotonic() - began
        for source in self._sources:
            source.close()
        spent = time.process_time() - spent
        # What follows is after the command, and must not change its status.
        try:
            self._finish(command, pattern, since, plot)
        except Exception as error:
            self._say(f"the trace is incomplete: {error}")
        self._close()
        if pattern is not None and pattern.startswith(str(folder)):
            shutil.rmtree(folder, ignore_errors=True)
        self._sum_up(out, seconds, spent)
        return status

    def _start_samplers(self) -> None:
        for host in self._hosts:
            try:
                source = Source(
                    host, self._interval, self._ssh, _START_SECONDS,
                    described=self._described, sampled=self._sampled, ended=self._ended,
                )  # fmt: skip
            except OSError as error:
                self._say(f"host {host.name} is not traced: {error.strerror}")
                continue
            self._sources.append(source)
        deadline = time.monotonic() + _START_SECONDS
        for _ in self._sources:
            self._begun.acquire(timeout=max(0.0, deadline - time.monotonic()))
        for source in self._sources:
            if source.description is None and source.host.name not in self._told:
                self._say(f"host {source.host.name} is not sampled yet: the command starts")

    def _described(self, source: Source) -> None:
        self._recording.describe(source)
        self._begun.release()

    def _sampled(self, source: Source, sample: Sample) -> None:
        self._recording.add(source, sample)
        self._check_files()

    def _ended(self, source: Source, reason: str) -> None:
        self._told.add(source.host.name)
        self._say(f"host {source.host.name} is not traced any more: {reason}")
        self._begun.release()

    def _check_files(self) -> None:
        error = self._recording.error
        with self._lock:
            if error is None or "file" in self._told:
                return
            self._told.add("file")
        path, why = error
        self._say(f"{path}: {why.strerror}: the trace ends here, and the command runs on")

    def _finish(
        self, command: list[str], pattern: Optional[str], since: float, plot: Optional[Path]
    ) -> None:
        found: list[Reports] = []
        problems: list[str] = []
        if pattern is not None:
            found, problems = collectives.load(collectives.files_of(pattern, since))
        for problem in problems:
            self._say(problem)
        self._recording.add_events(collectives.events(found, self._recording))
        self._check_files()
        if found:
            for name, other in self._recording.alike:
                self._say(
                    f"host {other} calls itself {name}, as another one does: calls of both are on "
                    "the other one's clock"
                )
        for host, seconds, jump in self._recording.jumps:
            self._say(
                f"the clock of host {host} was set by {jump:+.3g} s, {seconds:.1f} s after the "
                "trace began; times of calls before that are off by as much"
            )
        if plot is not None:
            from ropewalk.trace import picture

            text = " ".join(command)
            title = text if len(text) <= 100 else text[:97] + "..."
            spans = collectives.spans(found, self._recording)
            try:
                picture.draw(self._recording, spans, title, plot)
            except OSError as error:
                self._say(f"{plot}: {error.strerror}")

    def _close(self) -> None:
        for source in self._sources:
            source.close()
        self._recording.close()
        self._check_files()

    def _sum_up(self, out: Path, seconds: float, spent: float) -> None:
        most = max(self._recording.costs(), default=0.0)
        if seconds <= 0 or not self._recording.samples:
            return
        hosts = len(self._recording.series)
        for host in self._recording.series:
            averages = self._recording.averages(host)
            text = ", ".join(f"{name} {value:.3f}" for name, value in averages.items())
            self._say(f"host {host}, averages: {text}")
        self._say(
            f"{out}: {self._recording.samples} samples of {hosts} host{'s' if hosts > 1 else ''} "
            f"in {seconds:.1f} s; sampling took {100 * most:.2f}% of a core on a host, "
            f"writing {100 * spent / seconds:.2f}%"
        )

    def _say(self, text: str) -> None:
        with contextlib.suppress(OSError):
            print(f"ropewalk: {text}", file=sys.stderr, flush=True)


def _environment(folder: Path, calls: bool) -> tuple[dict[str, str], Optional[str]]:
    """The command's, and where its communicators write their records."""
    environment = dict(os.environ)
    if not calls or environment.get("ROPEWALK_TRACE") == "off":
        return environment, None
    environment.setdefault("ROPEWALK_TRACE_RECORDS", _RECORDS)
    # Without their times on the GPU, operations there have no length in the trace.
    environment.setdefault("ROPEWALK_TRACE_GPU", "1")
    if not environment.get("ROPEWALK_TRACE_FILE"):
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            print(f"ropewalk: {folder}: {error.strerror}: no calls are traced", file=sys.stderr)
            return environment, None
        environment["ROPEWALK_TRACE_FILE"] = str(folder / "%h-%p-%c-%r.json")
    return environment, environment["ROPEWALK_TRACE_FILE"]
