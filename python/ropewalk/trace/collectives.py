"""The calls of a traced job on the trace's time: events, and who was in a collective when."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ropewalk.calls import perfetto
from ropewalk.calls.records import Report, Reports, joined
from ropewalk.errors import ArgumentError
from ropewalk.trace.recording import Recording

Span = tuple[float, float]
"""seconds of the trace"""


def files_of(pattern: str, since: float) -> list[Path]:
    """Files that the setting TRACE_FILE named so, and that were written since then (Unix time)."""
    path = Path(pattern)
    # %h, %p, %r and %c are anything, %% is a percent sign.
    parts = re.split(r"%([hprc%])", path.name)
    text = "".join(
        re.escape(part) if i % 2 == 0 else ("%" if part == "%" else ".+")
        for i, part in enumerate(parts)
    )
    try:
        with os.scandir(path.parent) as entries:
            names = [e.name for e in entries if re.fullmatch(text, e.name) and e.is_file()]
    except OSError:
        return []
    found = [path.parent / name for name in sorted(names)]
    return [each for each in found if each.stat().st_mtime >= since - 1]


def load(paths: list[Path]) -> tuple[list[Reports], list[str]]:
    """The reports, and what could not be read."""
    reports, problems = [], []
    for path in paths:
        try:
            reports.append(Report.of(json.loads(path.read_text()), str(path)))
        except (OSError, ValueError, ArgumentError) as error:
            problems.append(f"{path}: {error}")
    return joined(reports), problems


def events(found: list[Reports], recording: Recording) -> Iterator[dict[str, Any]]:
    """As ropewalk.calls.perfetto has them, with the trace's times."""
    trace = perfetto.trace_of(found)
    base = int(trace["baseTimeNanoseconds"])
    hosts = {rank: report.host for reports in found for rank, report in reports.by_rank.items()}
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            real_ns = base + round(1000 * event["ts"])
            event["ts"] = recording.at(hosts[event["pid"]], real_ns) / 1000
        yield event


def spans(found: list[Reports], recording: Recording) -> dict[int, list[Span]]:
    """Of each rank, in which it was in a collective."""
    by_rank: dict[int, list[Span]] = {}
    for reports in found:
        for rank, report in reports.by_rank.items():
            into = by_rank.setdefault(rank, [])
            for record in report.collectives.values():
                begin = record["started_ns"] or record["scheduled_ns"]
                end = record["completed_ns"] or begin
                into.append(
                    (
                        recording.at(report.host, int(begin)) / 1e9,
                        recording.at(report.host, int(end)) / 1e9,
                    )
                )
    return {rank: sorted(each) for rank, each in sorted(by_rank.items())}
