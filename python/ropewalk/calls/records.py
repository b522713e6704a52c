"""The records of a communicator's ranks: what TRACE_FILE and Communicator.call_records() give."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from ropewalk.errors import ArgumentError

SCHEMA: Final = "ropewalk-calls"
VERSION: Final = 1

# Fields that not all who write reports have.
_LATER: Final = frozenset({"waiting", "links"})

Record = dict[str, Any]
"""As Communicator.call_records() describes it."""


@dataclass(frozen=True)
class Report:
    """What one rank recorded."""

    communicator: str
    rank: int
    ranks: int
    host: str
    process: int
    written_ns: int
    begun: int
    failure: str | None
    records: list[Record]
    waiting: dict[str, Any] | None = None
    """of a rank in which nothing moves: for (ranks), in (the operation), seconds"""
    links: list[dict[str, Any]] = field(default_factory=list)
    """what it has sent: to (a rank), over (a kind of link), bytes"""

    @classmethod
    def of(cls, document: Any, where: str) -> Report:
        """Raises ArgumentError when `document` is none; `where` is for its words."""
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise ArgumentError(f"{where}: has no records of calls (schema {SCHEMA})")
        if document.get("version") != VERSION:
            raise ArgumentError(f"{where}: version {document.get('version')} is not {VERSION}")
        try:
            fields = {
                name: document[name] for name in cls.__dataclass_fields__ if name not in _LATER
            }
            fields["waiting"] = document.get("waiting")
            fields["links"] = [
                {name: link[name] for name in ("to", "over", "bytes")}
                for link in document.get("links", [])
            ]
            for record in fields["records"]:
                for name in ("id", "call", "operation", "count", "state", "scheduled_ns"):
                    record[name]
        except (KeyError, TypeError) as error:
            raise ArgumentError(f"{where}: incomplete: {error}") from error
        return cls(**fields)

    @property
    def collectives(self) -> dict[int, Record]:
        """By their number on the communicator."""
        return {record["call"]: record for record in self.records if record["call"] is not None}


@dataclass(frozen=True)
class Reports:
    """What the ranks of one communicator recorded, as far as they are there, by rank."""

    communicator: str
    ranks: int
    by_rank: dict[int, Report]

    @property
    def missing(self) -> list[int]:
        """Ranks without a report."""
        return [rank for rank in range(self.ranks) if rank not in self.by_rank]


def joined(reports: Iterable[Report]) -> list[Reports]:
    """By communicator, in the order in which they come; of two reports of a rank the newer one."""
    found: dict[str, Reports] = {}
    for report in reports:
        whole = found.setdefault(
            report.communicator, Reports(report.communicator, report.ranks, {})
        )
        # NCCL does not tell its old profilers how many ranks there are.
        whole = found[report.communicator] = replace(whole, ranks=max(whole.ranks, report.ranks))
        before = whole.by_rank.get(report.rank)
        if before is None or before.written_ns <= report.written_ns:
            whole.by_rank[report.rank] = report
    return [
        Reports(each.communicator, each.ranks, dict(sorted(each.by_rank.items())))
        for each in found.values()
    ]


def load(paths: Iterable[Path]) -> list[Reports]:
    """Of files that TRACE_FILE named. Raises ArgumentError, with the file's name."""
    reports = []
    for path in paths:
        try:
            document = json.loads(path.read_text())
        except OSError as error:
            raise ArgumentError(f"{path}: {error.strerror}") from error
        except ValueError as error:
            raise ArgumentError(f"{path}: is not JSON: {error}") from error
        reports.append(Report.of(document, str(path)))
    return joined(reports)


def is_known(record: Record) -> bool:
    """Whether its state says how far it is: not of operations on a GPU that notes no times."""
    if record["memory"] != "GPU" or record["state"] != "scheduled":
        return True
    return bool(record.get("timed", False))


def describe(record: Record) -> str:
    """all_reduce of 4 float32 (sum)."""
    text = str(record["operation"])
    if record["type"]:
        text += f" of {record['count']} {record['type']}"
    if record["op"]:
        text += f" ({record['op']})"
    if record["root"] is not None:
        text += f", root {record['root']}"
    return text
