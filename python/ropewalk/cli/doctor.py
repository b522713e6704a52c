"""`ropewalk doctor`: which paths of this machine work, how fast, and why others do not."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Optional

import typer

from ropewalk import doctor as paths
from ropewalk.cli import console

HELP = """
Try every path of this machine that collectives need, and name the cause of what does not work.

Shared memory (its size and permissions, memory between two processes, kernel-assisted copies),
loopback and each network interface, RDMA adapters, adapters of PCIe bridges, each GPU with the
host, and each pair of GPUs: peer access, copies in both directions, kernels resident on both GPUs
that exchange flags and data, and the path through the host. Data is moved and compared; bandwidths
are held against what the link should give.

A check passes, fails, or is degraded: it works, but slower than it could. What is not there is
skipped; what cannot be tried, crashes or hangs has failed.

Examples:

\b
  ropewalk doctor
      everything
  ropewalk doctor --only gpus -J gpus.json
      GPUs alone; also as JSON
  ropewalk doctor --share 0.8
      links must give 80% of what they should

Exit status: 0 when nothing failed, 1 when something did, 2 for a wrong command line.
"""


def check_lines(check: paths.Check) -> list[str]:
    """One check: outcome, figures, what came, why."""
    figures = []
    if check.gbps is not None:
        rate = f"{check.gbps:.2f} GB/s"
        if check.expected_gbps is not None:
            rate += f" of {check.expected_gbps:.0f}"
        figures.append(rate)
    if check.latency_us is not None:
        figures.append(f"{check.latency_us:.2f} us")
    shown = f" ({', '.join(figures)})" if figures else ""
    lines = [f"  {check.outcome:<9} {check.what}: {check.found}{shown}"]
    if check.cause:
        lines.append(f"            likely cause: {check.cause}")
    return lines


def summary(checks: list[paths.Check]) -> str:
    """How many of each outcome."""
    return ", ".join(
        f"{sum(check.outcome == outcome for check in checks)} {outcome}"
        for outcome in ("passed", "degraded", "failed", "skipped")
    )


def doctor(
    only: Annotated[
        Optional[list[str]],
        typer.Option(
            "--only", metavar="KIND", help=f"Try these only: {', '.join(paths.KINDS)}. Repeatable."
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", help="For each path.")
    ] = 60,
    share: Annotated[
        float,
        typer.Option("--share", metavar="FRACTION", help="Of a link's rate that it must give."),
    ] = 0.5,
    output_file: Annotated[
        Optional[Path],
        typer.Option("-J", "--output_file", help="Write the results to this .json file too."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """See HELP."""
    if timeout <= 0:
        console.fail(f"--timeout {timeout:g}: above 0", console.USAGE)
    if not 0 <= share <= 1:
        console.fail(f"--share {share:g}: from 0 to 1", console.USAGE)
    reports = []
    checks = []
    with console.reported():
        for report in paths.examine(only or paths.KINDS, timeout=timeout, share=share):
            reports.append(report)
            checks += report.checks
            if not as_json:
                print(report.title)
                for check in report.checks:
                    print("\n".join(check_lines(check)), flush=True)
    failed = any(check.outcome == paths.FAILED for check in checks)
    document = {"healthy": not failed, "paths": [asdict(report) for report in reports]}
    print(json.dumps(document) if as_json else f"# {summary(checks)}")
    if output_file is not None:
        try:
            output_file.write_text(json.dumps(document, indent=1) + "\n")
        except OSError as error:
            console.fail(f"-J {output_file}: {error.strerror}", console.USAGE)
    raise typer.Exit(console.WRONG if failed else console.OK)
