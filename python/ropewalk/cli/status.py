"""`ropewalk status`: what the ranks of running jobs are in, asked from outside."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Final, Optional

import typer

from ropewalk.calls import status as asking
from ropewalk.calls import verdict
from ropewalk.cli import console
from ropewalk.cli.calls import describe_reports, print_reports
from ropewalk.launching.hosts import read_hosts

HELP: Final = """
Ask the running jobs of this host which rank is missing, which called something else, who is late.

Each process that has a communicator answers, whatever it does meanwhile (settings STATUS and
TRACE); those of the same user, of all users for root. With --hosts the hosts of a file are asked by
ssh: they need Python 3.9 or newer as python3, and nothing of Ropewalk. What is printed is as in
`ropewalk calls`, and besides for whom each rank waits while nothing moves.

Examples:

\b
  ropewalk status
      all jobs of this host
  ropewalk status --hosts hosts.txt
      jobs of several hosts
  ropewalk status --job 3f2a --watch 2
      one communicator, by the beginning of its name, every 2 s until it ends

Exit status: 0, 1 when a rank is missing, does not answer, or called something else, 2 for a wrong
command line, 3 when no job is found or a host cannot be asked.
"""

_AGAIN_SECONDS: Final = 0.3


def status(
    job: Annotated[
        str, typer.Option("--job", help="Only communicators whose names begin with this.")
    ] = "",
    hosts: Annotated[
        Optional[Path], typer.Option("--hosts", help="Ask the hosts of this file.")
    ] = None,
    ssh: Annotated[str, typer.Option("--ssh", help="The program ssh, with options.")] = "ssh",
    calls: Annotated[
        int, typer.Option("--calls", help="Last calls of each rank that are compared.")
    ] = 256,
    timeout: Annotated[
        float, typer.Option("--timeout", help="Seconds in which a process must answer.")
    ] = 5.0,
    watch: Annotated[
        Optional[float], typer.Option("--watch", help="Ask again after so many seconds.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """See HELP."""
    for flag, value in (("--calls", calls), ("--timeout", timeout), ("--watch", watch or 1.0)):
        if not value > 0:
            console.fail(f"{flag} {value:g}: must be above 0", console.USAGE)
    with console.reported():
        found_hosts = None if hosts is None else read_hosts(hosts)

    def look() -> asking.Found:
        if found_hosts is None:
            return asking.of_this_host(calls, timeout)
        return asking.of_hosts(found_hosts, asking.words_of(ssh), calls, timeout)

    seen = False
    while True:
        with console.reported():
            found = look()
            found = found.only(job)
            before = {each.communicator: verdict.judge(each) for each in found.communicators}
            # Ranks that run are asked at slightly different times.
            if any(judged.absent or judged.enqueued for judged in before.values()):
                time.sleep(_AGAIN_SECONDS)
                found = look().only(job)
        if not found.communicators and not found.silent and seen:
            return
        wrong = _print(found, before, as_json)
        if watch is None:
            break
        seen = seen or bool(found.communicators)
        time.sleep(watch)
    if not found.communicators and not found.silent:
        console.fail("no job of this user is running" + (f" as {job}" if job else ""))
    if found.unreached:
        raise typer.Exit(console.FAILURE)
    if wrong:
        raise typer.Exit(console.WRONG)


def _print(found: asking.Found, before: dict[str, verdict.Verdict], as_json: bool) -> bool:
    """Returns whether anything is wrong."""
    verdicts = [
        verdict.settled(before.get(each.communicator), each) for each in found.communicators
    ]
    pairs = list(zip(found.communicators, verdicts))
    if as_json:
        document = {
            "communicators": [describe_reports(*pair) for pair in pairs],
            "silent": [{"host": host, "process": process} for host, process in found.silent],
            "unreached": found.unreached,
        }
        print(json.dumps(document, indent=2), flush=True)
    else:
        for pair in pairs:
            print_reports(*pair, missing="no answer of")
        out = console.output()
        for host, process in found.silent:
            where = "" if host is None else f" on {host}"
            out.print(f"process {process}{where} does not answer{_state(host, process)}")
        for text in found.unreached:
            out.print(text)
    return bool(found.silent) or any(
        each.absent or each.enqueued or each.mismatches or each.still_links for each in verdicts
    )


def _state(host: Optional[str], process: int) -> str:
    """Of a process of this host that is stopped."""
    if host is not None:
        return ""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
    return ": it is stopped" if state in ("T", "t") else ""
