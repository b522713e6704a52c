"""Plans: which trees carry which share of a collective over which links, and how near the best.

Pure: no device, clock or environment. `plan` is the entry point:

Example:
    machine = ropewalk.topology.load("dgx1v.json")
    found = ropewalk.plan(machine, "broadcast", plane="nvlink")
    print(found.rate_gbps, found.bound_gbps, found.bottleneck["words"])
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Optional

from ropewalk._library import json_of, library, text_of
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
    """A plan with its machine. The JSON's fields (docs/planning.md) are attributes."""

    def __init__(self, topology: Topology, text: str) -> None:
        self.topology = topology
        self._text = text

    @cached_property
    def fields(self) -> dict[str, Any]:
        """The parsed JSON."""
        parsed: dict[str, Any] = json.loads(self._text)
        return parsed

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and name in self.fields:
            return self.fields[name]
        raise AttributeError(f"a plan has no {name}")

    def to_json(self) -> str:
        """The text, for `read` and `ropewalk schedule make --plan`."""
        return self._text

    def check(self) -> Certificate:
        """What the independent checker finds; made with the plan where `check` was asked for."""
        if "certificate" in self.fields:
            return Certificate(**self.fields["certificate"])
        raw = json_of(library().rwPlanCheck, self.topology.to_json().encode(), self._text.encode())
        return Certificate(**raw)

    def times_us(self, sizes: Sequence[float]) -> list[float]:
        """Estimated microseconds for messages of so many bytes."""
        found: list[float] = json_of(
            library().rwPlanTimes,
            self.topology.to_json().encode(),
            self._text.encode(),
            json.dumps(_floats(sizes, "sizes")).encode(),
        )
        return found


def _floats(values: Sequence[float], name: str) -> list[float]:
    try:
        return [float(value) for value in values]
    except (TypeError, ValueError) as reason:
        raise ArgumentError(f"{name}: {reason}") from None


def _json_of(topology: Topology) -> bytes:
    made: Topology = a(Topology, topology, "topology")
    return made.to_json().encode()


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
    return Plan(topology, text_of(library().rwPlanMake, _json_of(topology), request))


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
        library().rwPlanBound, _json_of(topology), _request(op, plane, gpus, root)
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
