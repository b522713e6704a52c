"""Answers as NCCL's RAS port gives them, so that `ncclras` and scripts for it work.

The protocol and the report's form are those of NCCL 2.28 to 2.30 (src/ras; user guide,
"Troubleshooting"): lines of a client, an answer to each; STATUS ends the connection, and after
MONITOR events follow until the client goes (ras_events.py). NCCL counts five kinds of collectives
for each rank, and so does this; what it says of GPUs is 0 here.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

from ropewalk import __version__
from ropewalk.calls import ras_events
from ropewalk.calls.records import Report, Reports
from ropewalk.calls.status import Found
from ropewalk.calls.verdict import Verdict, judge, settled

PORT: Final = 28028
PROTOCOL: Final = 2
# Ranks that run are asked at slightly different times.
_AGAIN_SECONDS: Final = 0.3
_NOTHING: Final[Mapping[str, Verdict]] = MappingProxyType({})
_KINDS: Final = {
    "Broadcast": "broadcast",
    "Reduce": "reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "AllReduce": "all_reduce",
}


class Session:
    """One client's connection: what was asked before changes the form of the answer."""

    def __init__(self) -> None:
        self._format = "text"
        self.monitors: set[str] = set()
        """the groups of events that it wants to be told"""

    def told(self, events: Iterable[ras_events.Event]) -> str:
        """What MONITOR sends of these, as far as the client wants them."""
        wanted = [each for each in events if each.group in self.monitors]
        as_json = self._format == "json"
        return "".join(each.as_json() if as_json else each.as_text() for each in wanted)

    def answer(self, line: str, found: Any) -> tuple[str, bool]:
        """Gives the text, and whether the connection ends with it.

        Args:
            line: as the client sent it, without its end.
            found: called without arguments for a Found, when a report is wanted.
        """
        words = line.strip().upper().split()
        if words[:2] == ["CLIENT", "PROTOCOL"] and len(words) == 3 and words[2].isdigit():
            return f"SERVER PROTOCOL {PROTOCOL}\n", False
        if len(words) == 2 and words[0] == "TIMEOUT" and words[1].isdigit():
            return "OK\n", False
        if words[:2] == ["SET", "FORMAT"] and words[2:] in (["TEXT"], ["JSON"]):
            self._format = words[2].lower()
            return "OK\n", False
        if words in (["STATUS"], ["VERBOSE", "STATUS"]):
            begin = time.monotonic()
            before = {each.communicator: judge(each) for each in found().communicators}
            if any(judged.absent or judged.enqueued for judged in before.values()):
                time.sleep(_AGAIN_SECONDS)
            now = found()
            seconds = time.monotonic() - begin
            if self._format == "json":
                return json.dumps(as_json(now, seconds), indent=2) + "\n", True
            return as_text(now, seconds, verbose=len(words) == 2, before=before), True
        if words[:1] == ["MONITOR"]:
            named = " ".join(words[1:])
            groups = ras_events.groups_of(named)
            if groups is None:
                return f"ERROR: Invalid event group in '{named[:64]}'\n", False
            self.monitors = groups
            return "OK\n", False
        return f"ERROR: Unknown command: {line.strip()[:64]}\n", False


def counts_of(report: Report) -> dict[str, int]:
    """Collectives of each of NCCL's kinds among the records that are kept."""
    counted = Counter(record["operation"] for record in report.collectives.values())
    return {name: counted[operation] for name, operation in _KINDS.items()}


def _status_of(reports: Reports) -> str:
    broken = any(report.failure for report in reports.by_rank.values())
    return "ABORT" if broken else "RUNNING"


def _errors_of(reports: Reports, judged: Verdict) -> str:
    if reports.missing:
        return "INCOMPLETE"
    if judged.absent or judged.mismatches:
        return "MISMATCH"
    return "OK"


def as_text(
    found: Found, seconds: float, *, verbose: bool, before: Mapping[str, Verdict] = _NOTHING
) -> str:
    """The report of STATUS and VERBOSE STATUS; `before`: verdicts of a moment ago."""
    every = [report for each in found.communicators for report in each.by_rank.values()]
    processes = {(report.host, report.process) for report in every}
    hosts = Counter(host for host, _ in processes)
    lines = [
        f"Ropewalk version {__version__}, answering as NCCL's RAS",
        "",
        "Job summary",
        "===========",
        "",
        "  Nodes  Processes         GPUs  Processes     GPUs",
        "(total)   per node  per process    (total)  (total)",
        f"{len(hosts):7d}  {_range(list(hosts.values())):>9s}  {0:11d}  {len(processes):9d}  "
        f"{0:7d}",
        "",
        f"Communicators... ({seconds:.3f}s)",
        "=" * 23,
        "",
        "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors",
        "    #  in group  per comm  per node  per comm  in group",
    ]
    problems: list[str] = []
    for number, reports in enumerate(found.communicators):
        judged = settled(before.get(reports.communicator), reports)
        nodes = Counter(report.host for report in reports.by_rank.values())
        errors = _errors_of(reports, judged)
        lines.append(
            f"{number:5d}  {1:8d}  {len(nodes):8d}  {_range(list(nodes.values())):>8s}  "
            f"{reports.ranks:8d}  {reports.ranks:8d}  {_status_of(reports):>8s}  {errors:>6s}"
        )
        problems += _problems(number, reports, judged, errors, verbose)
    for host, process in found.silent:
        problems.append(f"Process {process} on node {host or 'localhost'} does not respond")
    problems += found.unreached
    lines += ["", "Errors", "======", "", *(problems or ["No errors"]), ""]
    return "\n".join(lines)


def _problems(
    number: int, reports: Reports, judged: Verdict, errors: str, verbose: bool
) -> list[str]:
    if errors == "OK":
        return []
    lines = [f"#{number}-0 ({reports.communicator}) {errors}"]
    if reports.missing:
        lines.append(f"  Missing {len(reports.missing)} rank{_s(reports.missing)}")
        lines += [f"  Rank {rank} does not respond" for rank in reports.missing]
    if judged.absent:
        numbers = {
            rank: max(report.collectives, default=0) for rank, report in reports.by_rank.items()
        }
        lines.append("  Communicator ranks have different collective operation counts")
        for launched, many in sorted(Counter(numbers.values()).items(), reverse=True):
            lines.append(f"  {many} ranks have launched up to operation {launched}")
        shown = numbers if verbose else dict.fromkeys(judged.absent)
        for rank in shown:
            report = reports.by_rank[rank]
            lines.append(
                f"  Rank {rank} has launched up to operation {numbers[rank]} -- GPU 0 managed by "
                f"process {report.process} on node {report.host}"
            )
    return [*lines, *(f"  {text}" for text in judged.mismatches), ""]


def _range(numbers: list[int]) -> str:
    if not numbers:
        return "0"
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low}-{high}"


def _s(things: list[int]) -> str:
    return "" if len(things) == 1 else "s"


def as_json(found: Found, seconds: float) -> dict[str, Any]:
    """The report of STATUS after SET FORMAT json."""
    return {
        "nccl_version": f"ropewalk {__version__}",
        "cuda_runtime_version": 0,
        "cuda_driver_version": 0,
        "timestamp": time.strftime("%F %T"),
        "communicators_count": len(found.communicators),
        "communicators": [_communicator(each) for each in found.communicators],
        "ras": {"collection_time_sec": round(seconds, 3), "timeouts_count": len(found.silent)},
    }


def _communicator(reports: Reports) -> dict[str, Any]:
    return {
        "hash": f"0x{reports.communicator}",
        "secondary_hash": "0x0:0x0",
        "size": reports.ranks,
        "ranks_count": len(reports.by_rank),
        "missing_ranks_count": len(reports.missing),
        "ranks": [
            {
                "rank": rank,
                "host": report.host,
                "pid": report.process,
                "cuda_dev": 0,
                "nvml_dev": 0,
                "status": {
                    "init_state": 0,
                    "async_error": 0 if report.failure is None else 6,  # ncclRemoteError
                    "finalize_called": False,
                    "destroy_flag": False,
                    "abort_flag": report.failure is not None,
                },
                "collective_counts": counts_of(report),
            }
            for rank, report in reports.by_rank.items()
        ],
        "missing_ranks": [
            {
                "rank": rank,
                "host": "",
                "pid": 0,
                "cuda_dev": 0,
                "nvml_dev": 0,
                "status": {"unresponsive": True, "considered_dead": False},
            }
            for rank in reports.missing
        ],
    }
