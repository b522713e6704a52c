"""Figures out of what nccl-tests, `ropewalk bench` and NCCL itself print."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

# Names of columns by which nccl-tests and `ropewalk bench` print a result; "time" may have a unit.
_TIMES = ("time", "cputime")
_NUMBER = re.compile(r"^-?\d+(?:\.\d+)?(?:e[+-]?\d+)?$")

# What NCCL_DEBUG=INFO and ROPEWALK_DEBUG=INFO say of the network and of channels.
_FACTS = (
    ("network", re.compile(r"NCCL INFO Using network (.+)")),
    ("network", re.compile(r"joined by (\w+)")),
    ("channels", re.compile(r"NCCL INFO (\d+) coll channels")),
    ("channels", re.compile(r"(\d+) channels?\b")),
    ("version", re.compile(r"NCCL version ([\w.+-]+)")),
)


class LogError(Exception):
    """A log without a table, or with one that cannot be read."""


@dataclass(frozen=True)
class Line:
    """One size: times in microseconds, bandwidths in GB/s, of the half that is not in place."""

    size: int
    time_us: float
    algbw: float
    busbw: float
    wrong: int


@dataclass
class Log:
    lines: list[Line] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)


def _columns(header: list[str]) -> dict[str, int] | None:
    """The places of time, algbw, busbw and #wrong in the first half; None if it is no header."""
    if "size" not in header or "busbw" not in header:
        return None
    places: dict[str, int] = {}
    for place, name in enumerate(header):
        name = "time" if name in _TIMES else name
        places.setdefault(name, place)
    wanted = ("size", "time", "algbw", "busbw")
    return places if all(name in places for name in wanted) else None


def read(text: str) -> Log:
    """@raises LogError for a text without a result, or for rows that do not fit their header"""
    log = Log()
    places: dict[str, int] | None = None
    for row in text.splitlines():
        for name, pattern in _FACTS:
            said = pattern.search(row)
            if said and name not in log.facts:
                log.facts[name] = said.group(1).strip()
        cells = row.replace("#wrong", "wrong").lstrip("#").split()
        found = _columns(cells)
        if found is not None:
            places = found
            continue
        if places is None or not cells or row.lstrip().startswith("#") or not cells[0].isdigit():
            continue
        # Another program's word in the middle of the table is no row.
        if len(cells) <= places["busbw"]:
            continue
        try:
            values = [cells[places[name]] for name in ("time", "algbw", "busbw")]
            if not all(_NUMBER.match(value) for value in values):
                raise ValueError(row)
            time_us, algbw, busbw = map(float, values)
            wrong = cells[places["wrong"]] if places.get("wrong", len(cells)) < len(cells) else "0"
            count = int(float(wrong)) if _NUMBER.match(wrong) else 0
        except ValueError as error:
            raise LogError(f"a row that does not fit its header: {row.strip()}") from error
        log.lines.append(Line(int(cells[0]), time_us, algbw, busbw, count))
    if not log.lines:
        raise LogError("no table of nccl-tests or ropewalk bench")
    return log
