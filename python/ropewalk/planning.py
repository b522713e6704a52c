"""Plans: which trees carry which share of a collective over which links, and how near the best.

Pure: no device, clock or environment. `plan` is the entry point:

Example:
    machine = ropewalk.topology.load("dgx1v.json")
    found = ropewalk.plan(machine, "broadcast", plane="nvlink")
    print(found.rate_gbps, found.bound_gbps, found.bottleneck["words"])
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Callable, Optional

from ropewalk._library import (
    PlanHandle,
    TopologyHandle,
    check,
    json_of,
    library,
    made,
    text_of,
)
from ropewalk.arguments import a, integer, integers, text, text_or_none
from ropewalk.errors import ArgumentError
from ropewalk.topology import Topology


@dataclass(frozen=True)
class Certificate:
    """What the independent checker found."""

    valid: bool
    """trees, weights and loads are right"""
    bound_holds: bool
    optimal: bool
    largest_load: float
    """of any link, relative to its capacity"""
    defects: list[str]


class Plan:
    """A plan with its machine. The JSON's fields (docs/planning.md) are attributes.

    Made by `plan` or `read`. Threads: any number at once. Pickled as its JSON text.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        handle: Optional[PlanHandle] = None,
        text: Optional[str] = None,
    ) -> None:
        """Of `handle`, of `text`, which is read when it is needed, or of both."""
        self.topology = topology
        self._handle = handle
        if text is not None:
            self._text = text

    @property
    def c_handle(self) -> PlanHandle:
        """What functions of the C library take. Freed with this object.

        Raises:
            ArgumentError: only the text is there, without its trees.
        """
        if self._handle is None:
            self._handle = _read(self.topology, self._text, "plan")
        return self._handle

    @cached_property
    def _text(self) -> str:
        return text_of(library().rwPlanJson, self._handle, 1)

    @cached_property
    def fields(self) -> dict[str, Any]:
        """The parsed JSON."""
        parsed: dict[str, Any] = json.loads(self._text)
        return parsed

    @cached_property
    def _head(self) -> dict[str, Any]:
        """All but the trees, which may be long."""
        if self._handle is None or "fields" in self.__dict__:
            return self.fields
        found: dict[str, Any] = json_of(library().rwPlanJson, self._handle, 0)
        return found

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_"):
            fields = self.fields if name == "trees" else self._head
            if name in fields:
                return fields[name]
        raise AttributeError(f"a plan has no {name}")

    def to_json(self) -> str:
        """The text, for `read` and `ropewalk schedule make --plan`."""
        return self._text

    def check(self) -> Certificate:
        """What the independent checker finds; made with the plan where `check` was asked for."""
        if self._handle is None and "certificate" in self.fields:
            return Certificate(**self.fields["certificate"])
        return Certificate(**json_of(library().rwPlanCheck, self.c_handle))

    def times_us(self, sizes: Sequence[float]) -> list[float]:
        """Estimated microseconds for messages of the given numbers of bytes."""
        given = _floats(sizes, "sizes")
        numbers = ctypes.c_double * len(given)
        found = numbers()
        check(library().rwPlanTimes(self.c_handle, numbers(*given), len(given), found))
        return list(found)

    def __copy__(self) -> Plan:
        return Plan(self.topology, handle=self._handle, text=self.__dict__.get("_text"))

    def __deepcopy__(self, memo: dict[int, Any]) -> Plan:
        """Fields of its own; the plan itself never changes."""
        return self.__copy__()

    def __reduce__(self) -> tuple[Callable[[Topology, str], Plan], tuple[Topology, str]]:
        """For pickle: another process reads the text."""
        return _unpickled, (self.topology, self._text)


def _unpickled(topology: Topology, text: str) -> Plan:
    return Plan(topology, text=text)


def _read(topology: Optional[Topology], text: str, origin: str) -> PlanHandle:
    machine = None if topology is None else topology.c_handle
    return made(PlanHandle, library().rwPlanRead, machine, text.encode(), origin.encode())


def _floats(values: Sequence[float], name: str) -> list[float]:
    try:
        return [float(value) for value in values]
    except (TypeError, ValueError) as reason:
        raise ArgumentError(f"{name}: {reason}") from None


def _handle_of(topology: Topology) -> TopologyHandle:
    machine: Topology = a(Topology, topology, "topology")
    return machine.c_handle


def _request(
    op: str,
    plane: Optional[str],
    gpus: Optional[Sequence[int]],
    root: int,
    **more: Any,
) -> bytes:
    request = {
        "collective": text(op, "op").decode(),
        "plane": (text_or_none(plane, "plane") or b"").decode(),
        "gpus": [] if gpus is None else integers(gpus, "gpus"),
        "root": integer(root, "root"),
        **more,
    }
    return json.dumps(request).encode()


def plan(
    topology: Topology,
    op: str,
    *,
    plane: Optional[str] = None,
    gpus: Optional[Sequence[int]] = None,
    root: int = 0,
    algorithm: str = "auto",
    trees_per_root: int = 0,
    trees: bool = True,
    check: bool = False,
) -> Plan:
    """Plans a collective.

    Args:
        topology: the machine.
        op: all_reduce, all_gather, reduce_scatter, broadcast or reduce.
        plane: only its links; all when None.
        gpus: ranks of the topology that take part, in the plan's order; all when None.
        root: rank of the plan, for broadcast and reduce.
        algorithm: see `algorithms`; auto is the best rate, then the lowest latency.
        trees_per_root: so many for each root (packed: at most so many in all); 0 for any number.
        trees: False leaves the trees out, which may be long.
        check: the independent checker runs at once, so that `Plan.check` needs no trees.

    Raises:
        ArgumentError: a request that cannot be served; the text says why.
    """
    request = _request(
        op,
        plane,
        gpus,
        root,
        algorithm=text(algorithm, "algorithm").decode(),
        trees_per_root=integer(trees_per_root, "trees_per_root"),
        trees=bool(trees),
        check=bool(check),
    )
    handle = made(PlanHandle, library().rwPlanMake, _handle_of(topology), request)
    return Plan(topology, handle=handle)


def read(json_text: str, topology: Optional[Topology] = None, *, origin: str = "plan") -> Plan:
    """Reads a plan's text back.

    Args:
        json_text: as `Plan.to_json` gives it.
        topology: the machine that it was made for; None takes the GPUs and links that the text
            names, with the latencies of their types.
        origin: what messages call the text.

    Raises:
        ArgumentError: the text is no plan, is one for another machine, or lacks its trees; names
            the location in the JSON.
    """
    text(json_text, "json_text")
    text(origin, "origin")
    if topology is not None:
        _handle_of(topology)
    handle = _read(topology, json_text, origin)
    if topology is None:
        topology = Topology(made(TopologyHandle, library().rwPlanTopology, handle))
    return Plan(topology, handle=handle)


def bound(
    topology: Topology,
    op: str,
    *,
    plane: Optional[str] = None,
    gpus: Optional[Sequence[int]] = None,
    root: int = 0,
) -> dict[str, Any]:
    """The bound alone: "bound_gbps", "bound" (exact), "bottleneck"."""
    found: dict[str, Any] = json_of(
        library().rwPlanBound, _handle_of(topology), _request(op, plane, gpus, root)
    )
    return found


def algorithms() -> list[dict[str, Any]]:
    """Name, help and collectives of every algorithm."""
    found: list[dict[str, Any]] = json_of(library().rwPlanAlgorithms)
    return found


def split(classes: Sequence[tuple[float, float]], size: float) -> tuple[float, list[float]]:
    """Splits a message over classes of links that cannot be one graph, so that all end together.

    Args:
        classes: (GB/s, set-up in microseconds) of each.
        size: bytes of the message.

    Returns:
        Microseconds until all end, and the bytes of each class.
    """
    try:
        pairs = [(rate, setup) for rate, setup in classes]
    except (TypeError, ValueError):
        raise ArgumentError("classes must be pairs of GB/s and microseconds") from None
    rates = _floats([rate for rate, _ in pairs], "GB/s of classes")
    setups = _floats([setup for _, setup in pairs], "microseconds of classes")
    described = [{"gbps": rate, "setup_us": setup} for rate, setup in zip(rates, setups)]
    (whole,) = _floats([size], "size")
    raw = json_of(library().rwPlanSplit, json.dumps(described).encode(), whole)
    return raw["time_us"], raw["bytes"]
