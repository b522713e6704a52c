"""Random programs of messages, what they must do, and who runs them: host, streams and graphs.

A rank has several lanes, each a form in which operations are called. A lane owns a region in every
rank's window, which it alone writes, and a slot, on which it alone signals: so what must be where
follows from its own steps, in their order, whatever the other lanes do meanwhile.
"""

from __future__ import annotations

import dataclasses
import random
from collections import defaultdict
from typing import Any, Callable, Optional

import numpy as np
import numpy.typing as npt
from ropewalk.communicator import Communicator
from ropewalk.window import Window

Bytes = npt.NDArray[np.uint8]

REGION = 1500
MOST_STEPS = 6
ARENA = MOST_STEPS * REGION  # bytes that a lane's puts and gets have, on their side of the window
ROUNDS = 3

# By lane: single calls; prepared batches and graphs, which are launched again in each round.
REPEATED = ("batch", "graph")


@dataclasses.dataclass
class Step:
    """One operation of a lane."""

    kind: str  # "put", "get", "signal" or "flush"
    target: int
    offset: int = 0  # in the region
    arena: int = 0  # in the lane's arena
    data: Bytes = dataclasses.field(default_factory=lambda: np.zeros(0, np.uint8))
    count: int = 0


class Programs:
    """Of all lanes of all ranks: every rank makes the same, and runs its own."""

    def __init__(self, seed: int, ranks: int, lanes: dict[str, tuple[str, ...]]) -> None:
        """`lanes`: what kinds of steps each has."""
        self._random = random.Random(seed)
        self._ranks = ranks
        self._lanes = lanes
        self._kept: dict[tuple[int, str], list[Step]] = {}
        # By source, lane and target.
        self._regions: dict[tuple[int, str, int], Bytes] = defaultdict(
            lambda: np.zeros(REGION, np.uint8)
        )
        self.next_round()

    def next_round(self) -> None:
        self._signals: dict[tuple[int, str, int], int] = defaultdict(int)
        self._steps: dict[tuple[int, str], list[Step]] = {}
        for source in range(self._ranks):
            for lane in self._lanes:
                key = source, lane
                if key not in self._kept or lane not in REPEATED:
                    self._kept[key] = self._make(self._lanes[lane])
                self._steps[key] = [self._done(key, step) for step in self._kept[key]]

    def steps(self, source: int, lane: str) -> list[Step]:
        return self._steps[source, lane]

    def signals(self, source: int, lane: str, target: int) -> int:
        """In this round."""
        return self._signals[source, lane, target]

    def window(self, target: int) -> Bytes:
        """What that rank's window has to hold after the round."""
        return np.concatenate(
            [
                self._regions[source, lane, target]
                for source in range(self._ranks)
                for lane in self._lanes
            ]
        )

    def offset(self, source: int, lane: str) -> int:
        """Of the lane's region in each window."""
        return (source * len(self._lanes) + list(self._lanes).index(lane)) * REGION

    def _make(self, kinds: tuple[str, ...]) -> list[Step]:
        steps = []
        used = 0
        for _ in range(self._random.randrange(MOST_STEPS + 1)):
            kind, target = self._random.choice(kinds), self._random.randrange(self._ranks)
            step = Step(kind, target)
            if kind == "signal":
                step.count = 1 + self._random.randrange(3)
            elif kind != "flush":
                nbytes = self._random.randrange(self._random.choice((9, 200, REGION)))
                step.offset = self._random.randrange(REGION - nbytes + 1)
                step.arena = used
                step.data = np.zeros(nbytes, np.uint8)
                used += nbytes
            steps.append(step)
            if kind == "get" and "flush" in kinds:
                # Until it has ended no put may change what it reads.
                steps.append(Step("flush", target))
        # Everybody is told at the end.
        return steps + [Step("signal", target, count=1) for target in range(self._ranks)]

    def _done(self, key: tuple[int, str], step: Step) -> Step:
        """The step with its data, of which the model knows now."""
        step = dataclasses.replace(step)
        region = self._regions[(*key, step.target)]
        there = slice(step.offset, step.offset + step.data.size)
        if step.kind == "put":
            made = np.frombuffer(self._random.randbytes(step.data.size), np.uint8)
            region[there] = step.data = made
        elif step.kind == "get":
            step.data = region[there].copy()
        elif step.kind == "signal":
            self._signals[(*key, step.target)] += step.count
        return step


class Place:
    """Where windows are, and who does the operations: here the host's memory, and the host."""

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        self.lanes = self.kinds(call=True, handle=True, batch=True)
        self.window = self.make_window(None)
        self.arena: Any = np.zeros(ARENA * len(self.lanes), np.uint8)

    def kinds(self, **lanes: bool) -> dict[str, tuple[str, ...]]:
        """Of each lane's steps; where it is False, only what graphs may have."""
        every = ("put", "put", "put", "signal", "get", "flush")
        return {lane: every if all_of_them else every[:4] for lane, all_of_them in lanes.items()}

    def make_window(self, device: Any) -> Window:
        nbytes = REGION * len(self.lanes) * self.comm.size
        return self.comm.window(nbytes, slots=len(self.lanes) + 1, device=device)

    def slot(self, lane: str) -> int:
        return list(self.lanes).index(lane)

    def stream(self, lane: str) -> Any:
        """None: the host does it."""
        return None

    def settle(self) -> None:
        """Waits for the streams."""

    def write(self, data: Bytes) -> None:
        """To the arena. No stream is at work."""
        self.arena[:] = data

    def read(self) -> Bytes:
        return np.array(self.arena)

    def own_part(self) -> Bytes:
        return np.frombuffer(self.window.memory() or b"", np.uint8).copy()

    def clear(self) -> None:
        np.frombuffer(self.window.memory() or b"", np.uint8)[:] = 0

    def capture(self, body: Callable[[], None]) -> Callable[[], None]:
        """What launches a graph of what `body` enqueues."""
        raise NotImplementedError

    def close(self) -> None:
        self.comm.barrier()
        self.window.close()


class Runner:
    """Of one seed's programs, as one rank has them."""

    def __init__(self, place: Place, seed: int) -> None:
        self._place = place
        self._window = place.window
        self._rank, self._ranks = place.comm.rank, place.comm.size
        self._programs = Programs(seed, self._ranks, place.lanes)
        self._order = random.Random(seed * 64 + self._rank)
        self._batch = self._window.batch()
        self._in_graph = self._window.batch()  # stays as long as the graph
        self._graph: Optional[Callable[[], None]] = None
        self._handles: list[Any] = []

    def run(self) -> None:
        self._place.comm.barrier()
        self._place.clear()
        self._place.comm.barrier()
        for round_number in range(ROUNDS):
            if round_number > 0:
                self._programs.next_round()
            self._run_round(first=round_number == 0)

    def _run_round(self, *, first: bool) -> None:
        place, programs = self._place, self._programs
        mine = {lane: programs.steps(self._rank, lane) for lane in place.lanes}
        arena = np.zeros(ARENA * len(place.lanes), np.uint8)
        for lane, steps in mine.items():
            for step in steps:
                if step.kind == "put":
                    begin = place.slot(lane) * ARENA + step.arena
                    arena[begin : begin + step.data.size] = step.data
        place.write(arena)
        if first:
            self._prepare(mine)
        # The lanes in turn, a step of any.
        left = {lane: list(steps) for lane, steps in mine.items() if lane not in REPEATED}
        starts: dict[str, Callable[[], None]] = {}
        if "batch" in place.lanes:
            starts["batch"] = lambda: self._launch("batch", self._batch)
        if self._graph is not None:
            starts["graph"] = self._graph
        while left or starts:
            lane = self._order.choice(sorted(left) + sorted(starts))
            if lane in starts:
                starts.pop(lane)()
            elif left[lane]:
                self._call(lane, left[lane].pop(0))
            else:
                del left[lane]
        # Those that are not prepared wait for each other's signals, streams first.
        single = [lane for lane in place.lanes if lane not in REPEATED]
        slots = self._order.sample(single, len(single))
        for lane, slot in sorted(zip(single, slots), key=lambda pair: pair[0] == "call"):
            for source in range(self._ranks):
                count = programs.signals(source, slot, self._rank)
                how = {"stream": place.stream(lane), "blocking": lane != "handle"}
                self._keep(self._window.wait_signal(source, place.slot(slot), count, **how))
        for handle in self._handles:
            handle.wait(60)
        self._handles.clear()
        place.settle()
        self._compare(mine)
        looked = len(place.lanes)
        for peer in range(self._ranks):
            self._window.signal(peer, looked)
        for peer in range(self._ranks):
            self._window.wait_signal(peer, looked)

    def _prepare(self, mine: dict[str, list[Step]]) -> None:
        """What is launched in every round: the steps and the waits."""
        if "batch" in mine:
            self._fill(self._batch, "batch", mine["batch"])
        if "graph" in mine:
            # As single calls, or a batch in the graph.
            if self._order.randrange(2) and all(step.kind != "get" for step in mine["graph"]):
                self._fill(self._in_graph, "graph", mine["graph"])
                self._graph = self._place.capture(lambda: self._launch("graph", self._in_graph))
            else:
                self._graph = self._place.capture(lambda: self._call_all("graph", mine["graph"]))

    def _fill(self, batch: Any, lane: str, steps: list[Step]) -> None:
        for step in steps:
            if step.kind in ("put", "get"):
                getattr(batch, step.kind)(
                    self._memory(lane, step), step.target, self._at(lane, step)
                )
            elif step.kind == "signal":
                batch.signal(step.target, self._place.slot(lane), step.count)
            else:
                batch.flush(step.target)
        for source in range(self._ranks):
            count = self._programs.signals(source, lane, self._rank)
            batch.wait_signal(source, self._place.slot(lane), count)

    def _call_all(self, lane: str, steps: list[Step]) -> None:
        for step in steps:
            self._call(lane, step)
        for source in range(self._ranks):
            count = self._programs.signals(source, lane, self._rank)
            slot = self._place.slot(lane)
            self._window.wait_signal(source, slot, count, stream=self._place.stream(lane))

    def _launch(self, lane: str, batch: Any) -> None:
        stream = self._place.stream(lane)
        self._keep(batch.launch(blocking=stream is not None, stream=stream))

    def _call(self, lane: str, step: Step) -> None:
        stream = self._place.stream(lane)
        if step.kind == "flush":
            self._window.flush(step.target, stream=stream)
        elif step.kind == "signal":
            slot, blocking = self._place.slot(lane), lane != "handle"
            self._keep(
                self._window.signal(step.target, slot, step.count, blocking=blocking, stream=stream)
            )
        else:
            # A get with a handle may read at any time until it is done.
            blocking = lane != "handle" or step.kind == "get"
            call = self._window.put if step.kind == "put" else self._window.get
            memory, offset = self._memory(lane, step), self._at(lane, step)
            self._keep(call(memory, step.target, offset, blocking=blocking, stream=stream))

    def _keep(self, handle: Any) -> None:
        if handle is not None:
            self._handles.append(handle)

    def _memory(self, lane: str, step: Step) -> Any:
        begin = self._place.slot(lane) * ARENA + step.arena
        return self._place.arena[begin : begin + step.data.size]

    def _at(self, lane: str, step: Step) -> int:
        return self._programs.offset(self._rank, lane) + step.offset

    def _compare(self, mine: dict[str, list[Step]]) -> None:
        got = self._place.read()
        for lane, steps in mine.items():
            for step in steps:
                begin = self._place.slot(lane) * ARENA + step.arena
                there = got[begin : begin + step.data.size]
                assert step.kind != "get" or (there == step.data).all(), f"a get by {lane}"
        wrong = np.flatnonzero(self._place.own_part() != self._programs.window(self._rank))
        if wrong.size:
            source, number = divmod(int(wrong[0]) // REGION, len(self._place.lanes))
            name = list(self._place.lanes)[number]
            raise AssertionError(
                f"{wrong.size} bytes differ, the first from {name} of rank {source}"
            )


def run(place: Place, seeds: range) -> None:
    """All ranks call with the same seeds."""
    for seed in seeds:
        try:
            Runner(place, seed).run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, rank {place.comm.rank}: {error}") from error
    place.close()
