"""What happens to jobs while somebody watches: the events of NCCL's RAS command MONITOR.

Names and form are those of NCCL 2.29 and later (user guide, "Troubleshooting", "Monitoring Mode").
They follow from what processes answer at successive looks, so that what comes and goes between two
of them is not told.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from typing import Final, Optional

from ropewalk.calls.status import Found

LIFECYCLE: Final = "LIFECYCLE"
TRACE: Final = "TRACE"
GROUPS: Final = {"LIFECYCLE": {LIFECYCLE}, "TRACE": {TRACE}, "ALL": {LIFECYCLE, TRACE}}
_LOST: Final = re.compile(r"\brank (\d+) was lost\b")


@dataclass(frozen=True, order=True)
class Process:
    """A process of a job."""

    host: str
    number: int


@dataclass(frozen=True)
class Event:
    """`group` is LIFECYCLE (who comes and dies) or TRACE (the rest)."""

    group: str
    name: str
    process: Process
    details: str

    def as_text(self) -> str:
        """Gives a line."""
        process = f"Process {self.process.number} on node {self.process.host} managing no GPU"
        return f"[{time.strftime('%F %T')}] {self.name}: {process} {self.details}".rstrip() + "\n"

    def as_json(self) -> str:
        """Gives an object, in several lines."""
        document = {
            "timestamp": time.strftime("%F %T"),
            "group": self.group,
            "event": self.name,
            "peer": {
                "host": self.process.host,
                "pid": self.process.number,
                "cuda_devs": [],
                "nvml_devs": [],
            },
            "details": self.details,
        }
        return json.dumps(document, indent=2) + "\n"


class Watch:
    """Tells what has changed since the last look; the first look tells nothing."""

    def __init__(self) -> None:
        self._begun = False
        self._members: dict[Process, dict[str, int]] = {}
        """of each process: its rank by communicator"""
        self._silent: set[Process] = set()

    def look(self, found: Found) -> list[Event]:
        """The events, in the order of processes."""
        members: dict[Process, dict[str, int]] = {}
        lost: dict[tuple[str, int], str] = {}
        for each in found.communicators:
            for rank, report in each.by_rank.items():
                process = Process(report.host, report.process)
                members.setdefault(process, {})[each.communicator] = rank
                for named in _LOST.findall(report.failure or ""):
                    lost[each.communicator, int(named)] = str(report.failure)
        silent = {
            process
            for process in self._members
            if process not in members
            and any(
                number == process.number and host in (None, process.host)
                for host, number in found.silent
            )
        }
        events = [
            Event(LIFECYCLE, "PEER_NEW", process, "")
            for process in sorted(members.keys() - self._members.keys())
        ]
        for process in sorted(silent - self._silent):
            events.append(Event(TRACE, "PEER_UNRESPONSIVE", process, "it does not answer"))
        for process in sorted(self._silent & members.keys()):
            events.append(Event(TRACE, "PEER_RECOVERED", process, "it answers again"))
        for process in sorted(self._members.keys() - members.keys() - silent):
            ranks = self._members[process].items()
            reason = next((lost[each] for each in ranks if each in lost), None)
            if reason is not None:
                events.append(Event(LIFECYCLE, "PEER_DEAD", process, reason))
            else:
                events.append(
                    Event(TRACE, "PEER_DISCONNECTED", process, "it has no communicator any more")
                )
        if not self._begun:
            events = []
        self._begun = True
        kept = {process: self._members[process] for process in silent}
        self._members = {**kept, **members}
        self._silent = silent
        return events


def groups_of(words: str) -> Optional[set[str]]:
    """The groups that MONITOR names, separated by commas; None if one is unknown."""
    wanted: set[str] = set()
    for word in (words or "LIFECYCLE").split(","):
        if word not in GROUPS:
            return None
        wanted |= GROUPS[word]
    return wanted
