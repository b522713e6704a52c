"""The text form of a schedule as values, for showing and drawing.

The library's parser and checker have read the text before (ropewalk.schedule.check), so this reader
expects well-formed text; the form is defined in src/schedule/text.h.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Union

Operand = Union[int, str]  # a sending rank, "in" or "out"


@dataclass(frozen=True)
class Step:
    """Take the operands, combine them, deliver the result."""

    block: int
    operands: tuple[Operand, ...]
    sends: tuple[int, ...]
    writes_output: bool
    finished: bool

    @property
    def receives(self) -> tuple[int, ...]:
        """The ranks it waits for."""
        return tuple(operand for operand in self.operands if isinstance(operand, int))

    def sentence(self) -> str:
        """The step in words."""
        names = {"in": "own input", "out": "own output"}
        taken = [
            names[operand] if isinstance(operand, str) else f"rank {operand}"
            for operand in self.operands
        ]
        first = f"combine {' + '.join(taken)}" if len(taken) > 1 else f"take {taken[0]}"
        parts = [first]
        if self.writes_output:
            parts.append("write output")
        if self.sends:
            parts.append("send to " + ", ".join(f"rank {peer}" for peer in self.sends))
        return ", ".join(parts) + (" (complete)" if self.finished else "")


@dataclass
class Schedule:
    """All ranks' step lists; `programs[rank, channel]`."""

    collective: str = ""
    algorithm: str = ""
    ranks: int = 0
    root: int = 0
    parts: int = 1
    weights: list[int] = field(default_factory=list)
    programs: dict[tuple[int, int], list[Step]] = field(default_factory=dict)

    def steps(self, rank: int, channel: int) -> list[Step]:
        """One rank's steps on one channel."""
        return self.programs.get((rank, channel), [])


def read(text: str) -> Schedule:
    """Reads checked text."""
    schedule = Schedule()
    steps: list[Step] = []
    for raw in text.splitlines():
        line = raw.partition("#")[0].strip()
        words = line.split()
        if not words or words[0] == "ropewalk-schedule":
            continue
        if ":" in words[0] or (len(words) > 1 and words[1].startswith(":")):
            steps.append(_step(line))
        elif words[0] == "channel":
            schedule.weights.append(int(words[3]))
        elif words[0] == "rank":
            steps = schedule.programs.setdefault((int(words[1]), int(words[3])), [])
        elif words[0] in ("collective", "algorithm"):
            setattr(schedule, words[0], words[1])
        elif words[0] in ("ranks", "root", "parts"):
            setattr(schedule, words[0], int(words[1]))
    return schedule


def _step(line: str) -> Step:
    block, _, rest = line.partition(":")
    finished = "=>" in rest
    left, _, right = rest.partition("=>" if finished else "->")
    operands: list[Operand] = []
    for word in left.split("+"):
        name = word.strip()
        operands.append(name if name in ("in", "out") else int(name))
    targets = [word.strip() for word in right.split(",") if word.strip()]
    return Step(
        block=int(block.strip()[1:]),
        operands=tuple(operands),
        sends=tuple(int(word) for word in targets if word != "out"),
        writes_output="out" in targets,
        finished=finished,
    )


@dataclass(frozen=True)
class Message:
    """A chunk's transfer: from a step of one rank to a step of another."""

    block: int
    source: int
    source_step: int
    destination: int
    destination_step: int


@dataclass
class Run:
    """One chunk round on one channel, with unbounded FIFOs and steps of one time unit each."""

    times: dict[tuple[int, int], int]
    """(rank, step) to the time at which the step ends; 0 is the first"""
    messages: list[Message]
    length: int
    """time units"""


def run(schedule: Schedule, channel: int) -> Run:
    """Plays a channel. Steps that wait for what never comes are left out."""
    fifos: dict[tuple[int, int], deque[int]] = {}
    times: dict[tuple[int, int], int] = {}
    messages: list[Message] = []
    position = [0] * schedule.ranks
    moved = True
    while moved:
        moved = False
        for rank in range(schedule.ranks):
            steps = schedule.steps(rank, channel)
            while position[rank] < len(steps):
                index = position[rank]
                step = steps[index]
                if not all(fifos.get((peer, rank)) for peer in step.receives):
                    break
                ready = times.get((rank, index - 1), -1)
                for peer in step.receives:
                    sent = fifos[peer, rank].popleft()
                    ready = max(ready, times[peer, sent])
                    messages.append(Message(step.block, peer, sent, rank, index))
                times[rank, index] = ready + 1
                for peer in step.sends:
                    fifos.setdefault((rank, peer), deque()).append(index)
                position[rank] += 1
                moved = True
    return Run(times, messages, max(times.values(), default=-1) + 1)
