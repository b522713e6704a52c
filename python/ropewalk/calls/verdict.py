"""Which rank is missing, which one called something else, and for whom the others wait."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ropewalk.calls.records import Record, Reports, describe, is_known


@dataclass(frozen=True)
class Waiting:
    """How long the other ranks waited for one."""

    rank: int
    late_calls: int  # it started last in so many collectives
    share: float  # of the ranks' time in these collectives, that others waited for it


@dataclass(frozen=True)
class StillLink:
    """Both ranks are in the same collective, and nothing comes from one to the other."""

    source: int
    target: int
    seconds: float


@dataclass(frozen=True)
class Verdict:
    """What the records of one communicator's ranks say."""

    last_completed: int | None  # the newest collective that all ranks completed
    under_way: str | None  # the oldest that some rank has entered and not completed
    absent: list[int] = field(default_factory=list)  # the ranks that have not entered that one
    inside: list[int] = field(default_factory=list)  # those that are in it
    mismatches: list[str] = field(default_factory=list)
    waiting: list[Waiting] = field(default_factory=list)  # most share first
    still_links: list[StillLink] = field(default_factory=list)
    enqueued: list[int] = field(default_factory=list)  # ranks whose GPUs have not begun it

    def words(self) -> list[str]:
        """A line each."""
        lines = []
        if self.last_completed is not None:
            lines.append(f"all ranks completed collective {self.last_completed}")
        if self.under_way is not None:
            lines.append(f"{_ranks(self.inside)} in {self.under_way}")
            if self.absent:
                lines.append(f"{_ranks(self.absent)} not entered it")
            if self.enqueued:
                lines.append(f"{_ranks(self.enqueued)} enqueued it, and not begun it on the GPU")
        lines += [
            f"nothing has come from rank {link.source} to rank {link.target} for "
            f"{link.seconds:.3g} s"
            for link in self.still_links
        ]
        lines += self.mismatches
        return lines


def settled(before: Verdict | None, reports: Reports) -> Verdict:
    """The verdict on ranks that run, which were asked at slightly different times.

    A rank is absent if another one says that it waits while nothing moves, or if it was absent in
    the same collective when it was asked before (`before`, some tenths of a second ago).
    """
    now = judge(reports)
    if not (now.absent or now.enqueued) or any(
        report.waiting for report in reports.by_rank.values()
    ):
        return now
    if before is not None and (before.under_way, before.absent, before.enqueued) == (
        now.under_way,
        now.absent,
        now.enqueued,
    ):
        return now
    return replace(now, under_way=None, absent=[], inside=[], enqueued=[])


def judge(reports: Reports) -> Verdict:
    """Clocks of several hosts are compared as they are."""
    collectives = {rank: report.collectives for rank, report in reports.by_rank.items()}
    known = sorted({number for calls in collectives.values() for number in calls})
    newest = {rank: max(calls, default=0) for rank, calls in collectives.items()}

    last_completed = None
    under_way = None
    inside: list[int] = []
    absent: list[int] = []
    enqueued: list[int] = []
    for number in known:
        here = {rank: calls[number] for rank, calls in collectives.items() if number in calls}
        open_ = [rank for rank, record in here.items() if record["state"] != "completed"]
        late = [rank for rank in collectives if rank not in here and newest[rank] < number]
        # Enqueued, and its GPU has not begun it. Where none has, nobody waits for it yet.
        queued = [
            rank
            for rank, record in here.items()
            if record["memory"] == "GPU" and record["state"] == "scheduled"
        ]
        unknown = not all(is_known(record) for record in here.values())
        begun = sorted(set(here) - set(queued))
        if late or (open_ and not unknown and begun):
            under_way = f"collective {number}, {describe(next(iter(here.values())))}"
            inside = sorted(here) if unknown or not begun else begun
            enqueued = sorted(set(here) - set(inside))
            absent = sorted(late)
            break
        if open_ and not unknown:
            break
        if len(here) == len(collectives) == reports.ranks and not open_:
            last_completed = number
    return Verdict(
        last_completed,
        under_way,
        absent,
        inside,
        _mismatches(collectives, known),
        _waiting(reports, collectives, known),
        [] if absent or enqueued else _still_links(reports, inside),
        enqueued,
    )


def _ranks(ranks: list[int]) -> str:
    many = len(ranks) != 1
    return f"rank{'s' if many else ''} {', '.join(map(str, ranks))} {'have' if many else 'has'}"


def _still_links(reports: Reports, inside: list[int]) -> list[StillLink]:
    """Those that nothing else explains: the rank that should send waits for nobody else."""
    peers = {
        rank: set(report.waiting["for"])
        for rank, report in reports.by_rank.items()
        if report.waiting is not None and rank in inside
    }
    found = []
    for target, waited_for in peers.items():
        waiting = reports.by_rank[target].waiting
        assert waiting is not None
        found += [
            StillLink(source, target, float(waiting["seconds"]))
            for source in sorted(waited_for)
            if source in inside and peers.get(source, set()) <= {target}
        ]
    return found


def _mismatches(collectives: dict[int, dict[int, Record]], known: list[int]) -> list[str]:
    found = []
    for number in known:
        here = {rank: calls[number] for rank, calls in collectives.items() if number in calls}
        texts: dict[str, list[int]] = {}
        for rank, record in here.items():
            texts.setdefault(describe(record), []).append(rank)
        if len(texts) > 1:
            sides = "; ".join(
                f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}: {text}"
                for text, ranks in texts.items()
            )
            found.append(f"collective {number} differs: {sides}")
    return found


def _waiting(
    reports: Reports, collectives: dict[int, dict[int, Record]], known: list[int]
) -> list[Waiting]:
    late_calls = dict.fromkeys(collectives, 0)
    waited_ns = dict.fromkeys(collectives, 0)
    spent_ns = 0
    for number in known:
        here = {rank: calls[number] for rank, calls in collectives.items() if number in calls}
        whole = len(here) == reports.ranks > 1
        if not whole or any(record["completed_ns"] is None for record in here.values()):
            continue
        # A rooted operation's ranks need not wait for each other.
        if any(record["root"] is not None for record in here.values()):
            continue
        starts = {rank: int(record["started_ns"]) for rank, record in here.items()}
        last = max(starts, key=lambda rank: starts[rank])
        late_calls[last] += 1
        waited_ns[last] += sum(
            min(starts[last], int(record["completed_ns"])) - starts[rank]
            for rank, record in here.items()
        )
        spent_ns += sum(int(record["completed_ns"]) - starts[rank] for rank, record in here.items())
    found = [
        Waiting(rank, late_calls[rank], waited_ns[rank] / spent_ns)
        for rank in collectives
        if spent_ns > 0
    ]
    return sorted(found, key=lambda each: -each.share)
