"""`ropewalk calls`: what the ranks of a job were called with, who is missing, and who is late."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any, Final, Optional

import typer
from rich.table import Table

from ropewalk.calls import Reports, flight_recorder, inspector, load, perfetto, verdict
from ropewalk.calls import status as asking
from ropewalk.cli import console

HELP: Final = """
Read the records of a job's calls: which rank is missing, which called something else, who is late.

Every communicator keeps its last 1,024 calls in memory (settings TRACE and TRACE_RECORDS). With
TRACE_FILE=calls-%r.json each rank writes them when its communicator breaks or is left; a program
gets them by Communicator.call_records(). Give the files of all ranks, or --running, which asks the
jobs of this host as `ropewalk status` does.

A rank's share is the part of the ranks' time in collectives without a root that the others waited
for it to begin. Clocks of several hosts are compared as they are.

Examples:

\b
  ROPEWALK_TRACE_FILE=calls-%r.json torchrun --nproc-per-node 4 train.py
      write records
  ropewalk calls calls-*.json
      print what they say
  ropewalk calls calls-*.json --perfetto calls.json
      a trace for ui.perfetto.dev
  ropewalk calls calls-*.json --flight-recorder dump/rank_
      pickles for python -m torch.distributed.flight_recorder.fr_trace dump -p rank_
  ropewalk calls calls-*.json --inspector calls.log
      lines as NCCL's Inspector writes them
  ropewalk calls --running --job 3f2a --perfetto now.json
      of a job that runs, by the beginning of its communicator's name

Exit status: 0, 1 when a rank is missing or called something else, 2 for a wrong command line or
file, 3 when no job is running.
"""


# As many as a ring can keep.
_ALL: Final = 1 << 20
_TIMEOUT_SECONDS: Final = 10.0


def calls(
    files: Annotated[
        Optional[list[Path]], typer.Argument(metavar="[FILE...]", help="Of each rank.")
    ] = None,
    running: Annotated[
        bool, typer.Option("--running", help="Ask the running jobs of this host instead.")
    ] = False,
    job: Annotated[
        str, typer.Option("--job", help="Only communicators whose names begin with this.")
    ] = "",
    perfetto_: Annotated[
        Optional[Path], typer.Option("--perfetto", help="Write Chrome's trace events here.")
    ] = None,
    flight_recorder_: Annotated[
        Optional[str],
        typer.Option("--flight-recorder", metavar="PREFIX", help="Write a pickle for each rank."),
    ] = None,
    inspector_: Annotated[
        Optional[Path], typer.Option("--inspector", help="Write NCCL Inspector's lines here.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """See HELP."""
    if running == bool(files):
        console.fail("calls: give the files of all ranks, or --running", console.USAGE)
    found = _running(job) if running else _of_files(files or [], job)
    if flight_recorder_ is not None and len(found) > 1:
        console.fail(
            "--flight-recorder: these are of several communicators; choose one by --job",
            console.USAGE,
        )
    if perfetto_ is not None:
        console.write(json.dumps(perfetto.trace_of(found)) + "\n", perfetto_)
    if inspector_ is not None:
        console.write(
            "".join(f"{line}\n" for each in found for line in inspector.lines(each)), inspector_
        )
    if flight_recorder_ is not None:
        try:
            flight_recorder.write(found[0], flight_recorder_)
        except OSError as error:
            console.fail(f"--flight-recorder: {error}", console.USAGE)
    # Of ranks that run, which were asked at slightly different times, only what is sure.
    verdicts = [verdict.settled(None, each) if running else verdict.judge(each) for each in found]
    if as_json:
        print(json.dumps([describe_reports(*pair) for pair in zip(found, verdicts)], indent=2))
    else:
        for pair in zip(found, verdicts):
            print_reports(*pair, missing="no answer of" if running else "no file of")
    wrong = any(each.absent or each.mismatches or each.under_way for each in verdicts)
    if wrong:
        raise typer.Exit(console.WRONG)


def _of_files(files: list[Path], job: str) -> list[Reports]:
    with console.reported():
        found = asking.Found(load(files)).only(job).communicators
    if not found:
        console.fail(f"--job {job}: the files are of no such communicator", console.USAGE)
    return found


def _running(job: str) -> list[Reports]:
    with console.reported():
        found = asking.of_this_host(_ALL, _TIMEOUT_SECONDS).only(job)
    if found.silent:
        numbers = ", ".join(str(process) for _, process in found.silent)
        console.tell([f"no answer of process {numbers}"])
    if not found.communicators:
        console.fail("no job of this user is running" + (f" as {job}" if job else ""))
    return found.communicators


def describe_reports(reports: Reports, judged: verdict.Verdict) -> dict[str, Any]:
    """For JSON."""
    return {
        "communicator": reports.communicator,
        "ranks": reports.ranks,
        "without_file": reports.missing,
        "failures": {
            str(rank): report.failure for rank, report in reports.by_rank.items() if report.failure
        },
        "waits": {
            str(rank): report.waiting
            for rank, report in reports.by_rank.items()
            if report.waiting is not None
        },
        **dataclasses.asdict(judged),
        "words": judged.words(),
    }


def print_reports(reports: Reports, judged: verdict.Verdict, missing: str = "no file of") -> None:
    """To standard output; `missing` begins the line of ranks without a report."""
    out = console.output()
    out.print(f"communicator {reports.communicator}, {reports.ranks} ranks")
    if reports.missing:
        out.print(f"{missing} rank {', '.join(map(str, reports.missing))}")
    for line in judged.words():
        out.print(line)
    for rank, report in reports.by_rank.items():
        if report.failure:
            out.print(f"rank {rank}: {report.failure}")
        elif report.waiting is not None:
            peers = ", ".join(map(str, report.waiting["for"]))
            out.print(
                f"rank {rank} has waited {report.waiting['seconds']:.3g} s for rank {peers} in "
                f"{report.waiting['in']}"
            )
    table = Table(box=None, pad_edge=False)
    for title in ("rank", "host", "process", "operations", "kept", "last in", "others waited"):
        table.add_column(title, justify="left" if title == "host" else "right")
    shares = {each.rank: each for each in judged.waiting}
    for rank, report in reports.by_rank.items():
        late = shares.get(rank)
        table.add_row(
            str(rank),
            report.host,
            str(report.process),
            str(report.begun),
            str(len(report.records)),
            "-" if late is None else str(late.late_calls),
            "-" if late is None else f"{late.share:.1%}",
        )
    out.print(table)
