"""The measurements, reduced to one number for each library, operation and size."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from libraries import PEERS


@dataclass(frozen=True)
class Best:
    """The best setting of a library in one cell of the table."""

    library: str
    setting: str
    time_us: float
    wrong: int


@dataclass(frozen=True)
class Place:
    """One row of a table."""

    scenario: str
    operation: str
    size: int


class Results:
    """All rows of a result file, each {scenario, operation, library, setting, size, times_us...}.

    `statistic` is "median" or "min" over the rounds: medians to compare, minima where something
    else used the machine.
    """

    def __init__(self, document: dict[str, object], statistic: str = "median") -> None:
        rows = document["results"]
        assert isinstance(rows, list)
        self.document = document
        self.statistic = statistic
        reduce = statistics.median if statistic == "median" else min
        self._best: dict[tuple[Place, str], Best] = {}
        for row in rows:
            place = Place(row["scenario"], row["operation"], row["size"])
            candidate = Best(row["library"], row["setting"], reduce(row["times_us"]), row["wrong"])
            key = (place, row["library"])
            if key not in self._best or candidate.time_us < self._best[key].time_us:
                self._best[key] = candidate
            # Gloo has one medium; its figures are in both tables.
            if row["library"] == "gloo" and place.scenario.endswith("-tcp"):
                twin = Place(place.scenario.replace("-tcp", "-shm"), place.operation, place.size)
                self._best[twin, "gloo"] = self._best[key]
        self.places = list(dict.fromkeys(place for place, _ in self._best))

    def best(self, place: Place, library: str) -> Best | None:
        return self._best.get((place, library))

    def best_peer(self, place: Place) -> Best | None:
        peers = [best for peer in PEERS if (best := self.best(place, peer)) is not None]
        return min(peers, key=lambda best: best.time_us, default=None)

    def libraries(self) -> list[str]:
        present = {library for _, library in self._best}
        return [name for name in (*PEERS, "ropewalk") if name in present]

    def scenarios(self) -> list[str]:
        listed = self.document["scenarios"]
        assert isinstance(listed, dict)
        return [name for name in listed if any(place.scenario == name for place in self.places)]

    def operations(self, scenario: str) -> list[str]:
        return list(dict.fromkeys(p.operation for p in self.places if p.scenario == scenario))

    def rows(self, scenario: str, operation: str) -> list[Place]:
        found = [p for p in self.places if (p.scenario, p.operation) == (scenario, operation)]
        return sorted(found, key=lambda place: place.size)

    def wrong(self) -> list[str]:
        """The rows in which a library computed a wrong result."""
        rows = self.document["results"]
        assert isinstance(rows, list)
        return [
            f"{row['library']} ({row['setting']}) {row['operation']} {row['size']} B, "
            f"{row['scenario']}: {row['wrong']} wrong elements"
            for row in rows
            if row["wrong"]
        ]
