"""Computation beside collectives: what each loses. See `run`."""

from __future__ import annotations

import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ANSWER_LIMIT_S = 60.0


class OverlapError(Exception):
    """A rank refused, died, or gave no answer in time."""


@dataclass(frozen=True)
class Work:
    """What is timed."""

    operation: str = "all_reduce"
    size: int = 128 << 20
    matrix: int = 8192


@dataclass(frozen=True)
class Carrier:
    """What carries data that is only moved."""

    environment: dict[str, str]
    libraries: tuple[str, ...] = ("nccl", "ropewalk")  # that have it
    in_place: bool = False  # each rank's input is its part of the output: no copy within a GPU


# Both libraries have NCCL's policy 2, ZERO.
BY_ENGINES = {"NCCL_CTA_POLICY": "2"}
CARRIERS = {
    "kernels": Carrier({}),
    "copy engines": Carrier(BY_ENGINES),
    "in place": Carrier(BY_ENGINES, in_place=True),
    # Copy engines, but handshakes by a warp.
    "with warps": Carrier({**BY_ENGINES, "ROPEWALK_COPY_HANDSHAKES": "kernel"}, ("ropewalk",)),
}
# An all-gather as long as the all-reduce of the other rows.
COPIED = Work("all_gather")
# Of a product's time, that it may lose beside copies.
COPIED_AIM = 0.03


class Crew:
    """The ranks of one library, a process each, with at most `blocks` blocks (0: as it likes).

    With a carrier (CARRIERS) the buffers are registered as symmetric windows."""

    def __init__(self, library: Path, ranks: int, blocks: int, carrier: str | None = None) -> None:
        self.folder = tempfile.TemporaryDirectory()
        environment = {"NCCL_NVLS_ENABLE": "0", **os.environ}
        if blocks > 0:
            environment["NCCL_MAX_CTAS"] = str(blocks)  # Ropewalk's MAX_BLOCKS, too
        if carrier is not None:
            environment.update(CARRIERS[carrier].environment)
        windows = [] if carrier is None else ["windows"]
        if carrier is not None and CARRIERS[carrier].in_place:
            windows = ["in_place"]
        self.processes = [
            subprocess.Popen(
                [sys.executable, str(HERE / "rank.py"), str(library), str(rank), str(ranks)]
                + [str(Path(self.folder.name) / "id"), *windows],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                bufsize=1,
            )
            for rank in range(ranks)
        ]
        self._answers()

    def times(self, work: Work) -> dict[str, float]:
        return self._ask({"do": "times", **vars(work)})

    def measure(self, work: Work, counts: dict[str, int]) -> dict[str, float]:
        return self._ask({"do": "measure", **vars(work), "counts": counts})

    def close(self) -> None:
        for process in self.processes:
            try:
                process.communicate(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
        self.folder.cleanup()

    def _ask(self, command: dict[str, Any]) -> dict[str, float]:
        for process in self.processes:
            assert process.stdin is not None
            try:
                process.stdin.write(json.dumps(command) + "\n")
                process.stdin.flush()
            except BrokenPipeError as error:
                raise OverlapError("a rank has ended") from error
        answers = self._answers()
        # The slowest rank's times; all wrong elements.
        result = {name: max(answer[name] for answer in answers) for name in answers[0]}
        if "wrong" in result:
            result["wrong"] = sum(answer["wrong"] for answer in answers)
        return result

    def _answers(self) -> list[dict[str, float]]:
        end = time.monotonic() + ANSWER_LIMIT_S
        answers = []
        for rank, process in enumerate(self.processes):
            assert process.stdout is not None
            left = max(0.0, end - time.monotonic())
            if not select.select([process.stdout], [], [], left)[0]:
                raise OverlapError(f"rank {rank}: no answer in {ANSWER_LIMIT_S:g} s")
            line = process.stdout.readline()
            if not line:
                raise OverlapError(f"rank {rank} has ended")
            answer = json.loads(line)
            if "error" in answer:
                raise OverlapError(f"rank {rank}: {answer['error']}")
            answers.append(answer)
        return answers

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


def counts_for(times: dict[str, float], seconds: float) -> dict[str, int]:
    """So many of each that each takes about that long alone."""
    return {
        "products": max(3, round(seconds / times["product_s"])),
        "collectives": max(3, round(seconds / times["collective_s"])),
    }


def figures(rounds: list[dict[str, float]], counts: dict[str, int]) -> dict[str, float]:
    """Medians of the rounds, and what follows: slow-downs are times beside over times alone."""
    middle = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
    alone = max(
        middle["product_alone_s"] * counts["products"],
        middle["collective_alone_s"] * counts["collectives"],
    )
    return {
        **middle,
        "wrong": sum(one["wrong"] for one in rounds),
        "product_slowdown": middle["product_beside_s"] / middle["product_alone_s"],
        "collective_slowdown": middle["collective_beside_s"] / middle["collective_alone_s"],
        "together_over_longer": middle["together_s"] / alone,
    }


def compare(
    libraries: dict[str, Path],
    ranks: int,
    blocks: int,
    work: Work,
    rounds: int,
    seconds: float,
    end: float,
    carrier: str | None = None,
    show: Callable[[str], None] = lambda _: None,
) -> dict[str, dict[str, Any]]:
    """The libraries in turn, with at most `blocks` blocks. Starts nothing after `end`.

    `show` is told each round's figures at once, for when the program is ended early."""
    found: dict[str, dict[str, Any]] = {}
    crews: dict[str, Crew] = {}
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in libraries}
    counts: dict[str, dict[str, int]] = {}
    try:
        for name, library in libraries.items():
            if time.monotonic() > end:
                found[name] = {"error": "not measured: out of time"}
                continue
            try:
                crews[name] = Crew(library, ranks, blocks, carrier)
                counts[name] = counts_for(crews[name].times(work), seconds)
            except OverlapError as error:
                found[name] = {"error": str(error)}
        for round_ in range(rounds):
            names = list(counts) if round_ % 2 == 0 else list(reversed(counts))
            for name in names:
                if name in found or time.monotonic() > end:
                    continue
                try:
                    measured[name].append(crews[name].measure(work, counts[name]))
                    one = figures(measured[name][-1:], counts[name])
                    show("\n".join(_lines_of(carrier or str(blocks or "free"), {name: one})))
                except OverlapError as error:
                    found[name] = {"error": str(error)}
        for name, all_rounds in measured.items():
            if all_rounds and name not in found:
                found[name] = figures(all_rounds, counts[name])
    finally:
        for name, crew in crews.items():
            if "error" in found.get(name, {}):
                crew.kill()
            else:
                crew.close()
    return found


def compare_copies(
    libraries: dict[str, Path],
    ranks: int,
    matrix: int,
    rounds: int,
    seconds: float,
    end: float,
    show: Callable[[str], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """All-gathers between symmetric windows, by kernels and by copy engines."""
    work = Work(COPIED.operation, COPIED.size, matrix)
    begin = time.monotonic()
    rows = []
    for i, carrier in enumerate(CARRIERS):
        share = begin + (end - begin) * (i + 1) / len(CARRIERS)
        having = {n: path for n, path in libraries.items() if n in CARRIERS[carrier].libraries}
        found = compare(having, ranks, 0, work, rounds, seconds, share, carrier, show)
        rows.append({"carrier": carrier, "work": vars(work), "libraries": found})
    return rows


def _lines_of(title: str, libraries: dict[str, Any]) -> list[str]:
    lines = []
    for name, one in libraries.items():
        if "error" in one:
            lines.append(f"{title:>12} {name:<10} {one['error']}")
            continue
        mark = f"  {one['wrong']} WRONG" if one["wrong"] else ""
        lines.append(
            f"{title:>12} {name:<10} {one['product_alone_s'] * 1e6:>9.1f} "
            f"{one['product_beside_s'] * 1e6:>9.1f} {one['product_slowdown']:>6.2f} "
            f"{one['collective_alone_s'] * 1e6:>11.1f} "
            f"{one['collective_beside_s'] * 1e6:>9.1f} {one['collective_slowdown']:>6.2f} "
            f"{one['together_over_longer']:>9.2f}{mark}"
        )
    return lines


def _heading(first: str) -> str:
    return (
        f"{first:>12} {'':<10} {'product':>9} {'beside':>9} {'x':>6} "
        f"{'collective':>11} {'beside':>9} {'x':>6} {'together':>9}"
    )


def copies_text(rows: list[dict[str, Any]]) -> list[str]:
    """A line for each library and carrier."""
    if not rows:
        return ["# by copy engines: not measured"]
    work = rows[0]["work"]
    lines = [
        f"# {work['operation']} of {work['size'] >> 20} MiB between symmetric windows, by kernels "
        "and by copy engines (CTA policy ZERO), these",
        "# also in place, and with a warp for each handshake (COPY_HANDSHAKES=kernel)",
        _heading("by"),
    ]
    for row in rows:
        lines += _lines_of(row["carrier"], row["libraries"])
        own = row["libraries"].get("ropewalk", {})
        if row["carrier"] == "copy engines" and "product_slowdown" in own:
            lost = own["product_slowdown"] - 1
            verdict = "met" if lost < COPIED_AIM else "MISSED"
            lines.append(
                f"# the product loses {lost:.1%} beside Ropewalk's copies; aim: under "
                f"{COPIED_AIM:.0%}: {verdict}"
            )
    return lines


def text(
    rows: list[dict[str, Any]], heading: list[str], copies: list[dict[str, Any]] | None = None
) -> str:
    """A table: a line for each library and number of blocks, and those of compare_copies()."""
    lines = [f"# {line}" for line in heading]
    lines += [
        "# alone and beside in us, of one product and of one collective; x: beside over alone;",
        "# together: as much of each as takes equally long alone, over that time",
        "",
        _heading("blocks"),
    ]
    for row in rows:
        lines += _lines_of(str(row["blocks"] or "free"), row["libraries"])
    lines.append("")
    lines += copies_text(copies or [])
    return "\n".join(lines) + "\n"
