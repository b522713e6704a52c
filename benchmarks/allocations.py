"""Sets of a DGX-1's GPUs, distinguished by the links between them."""

from __future__ import annotations

import itertools

from ropewalk.topology import Topology


def lanes(machine: Topology) -> dict[tuple[int, int], float]:
    rank = {node.id: node.rank or 0 for node in machine.gpus}
    return {
        (rank[link.src], rank[link.dst]): link.capacity
        for link in machine.links
        if link.type == "nvlink" and link.src in rank and link.dst in rank
    }


def signature(gpus: tuple[int, ...], wide: dict[tuple[int, int], float]) -> tuple[object, ...]:
    """A key that is equal for isomorphic sets: the smallest matrix over all orders."""
    best: tuple[float, ...] | None = None
    degrees = {g: sorted(wide.get((g, h), 0.0) for h in gpus) for g in gpus}
    # Only orders by degree, since isomorphisms keep degrees.
    groups = [
        list(group)
        for _, group in itertools.groupby(
            sorted(gpus, key=lambda g: degrees[g]), key=lambda g: degrees[g]
        )
    ]
    for parts in itertools.product(*(itertools.permutations(group) for group in groups)):
        order = [g for part in parts for g in part]
        matrix = tuple(wide.get((a, b), 0.0) for a in order for b in order)
        if best is None or matrix < best:
            best = matrix
    return (len(gpus), best)


def connected(gpus: tuple[int, ...], wide: dict[tuple[int, int], float]) -> bool:
    seen, pending = {gpus[0]}, [gpus[0]]
    while pending:
        here = pending.pop()
        for there in gpus:
            if there not in seen and (here, there) in wide:
                seen.add(there)
                pending.append(there)
    return len(seen) == len(gpus)


def classes(machine: Topology) -> list[tuple[tuple[int, ...], int]]:
    """One set of each class of connected sets, with the size of its class."""
    wide = lanes(machine)
    found: dict[tuple[object, ...], list[tuple[int, ...]]] = {}
    for size in range(3, 9):
        for gpus in itertools.combinations(range(8), size):
            if connected(gpus, wide):
                found.setdefault(signature(gpus, wide), []).append(gpus)
    return [(members[0], len(members)) for members in found.values()]
