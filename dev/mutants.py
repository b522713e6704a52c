"""Tries small, plausible changes to the code ("mutants") against the tests that should notice.

Usage: make mutants [MUTANTS=60] [MUTANTS_SEED=1] [MUTANTS_LAYERS="core comm"]; see docs/testing.md.

Per layer, lines of src/ are drawn by a seeded generator, and one operator of mutant_sites.py is
applied to each. The mutant is compiled in build/mutants/tree (mutant_trial.py) and tried against
the tests beside its source, then those of its layer, then the nearest ones that use several layers
or processes, until one fails. Mutants that do not compile, or compile to the same objects, count
for nothing.

Results stay in build/mutants/report.json: a second run of the same seed repeats unexplained
survivors and continues with the missing mutants. MUTANTS_AGAIN="FILE:LINE" repeats one location;
MUTANTS_AGAIN=stale repeats unexplained survivors and mutants in files that have changed, so that
all results are of one state of the sources; lines are found by their text. MUTANTS_FRESH=1 ignores
earlier results.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from mutant_sites import Mutant, mutants_of
from mutant_trial import (
    Baseline,
    Step,
    Tree,
    Verdict,
    adopt_orphans,
    baseline_of,
    suites_of,
    tried,
)

ROOT = Path(__file__).resolve().parent.parent
EXPLAINED = ROOT / "dev" / "mutants_explained.json"

# Test programs, with patterns of their tests where not all are near, and files of pytest, of each
# layer, the nearest first.
TESTS: dict[str, tuple[str, ...]] = {
    "core": (
        "core_test",
        "comm_test",
        "bootstrap_test",
        "errors",
        "transport_test */Shm */Tcp",
        "cli",
    ),
    "topology": ("topology_test", "plan_test", "topology planning"),
    "plan": ("plan_test", "schedule_test", "planning bench_plan planned_run"),
    "schedule": ("schedule_test", "executor_test", "algorithms_test", "schedule_plan simulate"),
    "transport": ("transport_test", "netplugin_test", "hosts_test"),
    "executor": ("executor_test", "comm_test", "algorithms_test", "collectives types"),
    "bootstrap": ("bootstrap_test", "comm_test", "faults_test", "hosts_test", "launchers"),
    "link": ("link_test", "comm_test", "diagnose_test", "hosts_test", "collectives"),
    "tune": ("tune_test", "comm_test", "explain"),
    "handshake": ("handshake_test",),
    "monitor": ("monitor_test", "comm_test", "status"),
    "trace": ("trace_test", "comm_test", "trace"),
    "machine": ("machine_test", "comm_test", "machines_test"),
    "comm": ("comm_test", "diagnose_test", "faults_test", "algorithms_test", "collectives errors"),
    "diagnose": ("diagnose_test", "bench_table doctor"),
    "capi": (
        "capi_test",
        "collectives errors types interrupts",
        "bench_table topology planning handles microbench",
        "bench_threads",
        "cli",
    ),
    "netplugin": ("netplugin_test", "check_plugin"),
    "message": ("comm_test", "windows_test", "window"),
    "profiler": ("profiler_plugin",),
    "check_plugin": ("check_plugin", "doctor"),
}

# A header that more sources include than these takes minutes to try.
MOST_USERS = 30
# For --again: mutants without a result for the present sources.
STALE = "stale"
# Lines drawn for each mutant that counts, at most: where nearly nothing compiles, an end.
MOST_DRAWN = 6


def steps_of(layer: str) -> list[Step]:
    steps = []
    for row in TESTS[layer]:
        first, *more = row.split()
        if first.endswith("_test"):
            steps.append(Step(first, tuple(more)))
        else:
            steps.append(Step(" ".join(f"tests/python/{name}_test.py" for name in row.split())))
    return steps


def beside(root: Path, layer: str, file: str) -> list[Step]:
    """The suites of the unit tests of this source: beside it, or of its header by name."""
    source = Path(file)
    header = source.with_suffix(".h").relative_to("src").as_posix()
    suites: set[str] = set()
    for test in sorted((root / "src" / layer).rglob("*_test.cc")):
        own = test.stem == f"{source.stem}_test" and test.parent == root / source.parent
        if own or f'#include "{header}"' in test.read_text():
            suites.update(suites_of(test))
    return [Step(f"{layer}_test", tuple(sorted(suites)))] if suites else []


def sources_of(root: Path, layer: str) -> list[str]:
    """Sources compiled into the layer, without helpers of tests."""
    found = []
    for path in sorted((root / "src" / layer).rglob("*")):
        name = path.relative_to(root)
        if path.suffix not in (".cc", ".h") or "testing" in name.parts:
            continue
        if not path.stem.endswith(("_test", "_fuzz")) and not path.stem.startswith("test_"):
            found.append(name.as_posix())
    return found


def drawn(mutants: list[Mutant], seed: str) -> list[Mutant]:
    """One mutant a line, lines and operators with equal chances, in the order of a sample."""
    chance = random.Random(seed)
    lines: dict[tuple[str, int], dict[str, list[Mutant]]] = {}
    for mutant in mutants:
        of_line = lines.setdefault((mutant.file, mutant.line), {})
        of_line.setdefault(mutant.operator, []).append(mutant)
    order = list(lines)
    chance.shuffle(order)
    return [chance.choice(lines[at][chance.choice(list(lines[at]))]) for at in order]


@dataclass
class Entry:
    """A mutant and what became of it."""

    layer: str
    mutant: Mutant
    source: str  # digest of the file that was changed
    verdict: Verdict
    first: str = ""  # the verdict's state when it was tried first

    def __post_init__(self) -> None:
        self.first = self.first or self.verdict.state

    @property
    def counts(self) -> bool:
        """Whether a test could have failed."""
        return counts(self.verdict.state)


def counts(state: str) -> bool:
    """Whether a test could have failed."""
    return state in ("noticed", "survived")


Reasons = dict[tuple[str, str, str], str]


def explanations(file: Path = EXPLAINED) -> Reasons:
    """Why no test can notice a mutant, by file, line's text and changed text."""
    rows = json.loads(file.read_text()) if file.exists() else []
    return {(row["file"], row["was"], row["now"]): row["why"] for row in rows}


def explanation(mutant: Mutant, reasons: Reasons) -> str:
    return reasons.get((mutant.file, mutant.was.strip(), mutant.now.strip()), "")


def percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f}%" if whole else "-"


def report(entries: list[Entry], reasons: Reasons) -> str:
    """The table by layer, then each survivor."""
    titles = (
        *("layer", "drawn", "refused", "same code", "gone"),
        *("tried", "noticed", "survived", "explained", "at first"),
    )
    rows: list[tuple[str, ...]] = [(*titles, "")]
    layers = [layer for layer in TESTS if any(entry.layer == layer for entry in entries)]
    for layer in [*layers, "all"]:
        of = [entry for entry in entries if layer in (entry.layer, "all")]
        state = [entry.verdict.state for entry in of]
        count = sum(entry.counts for entry in of)
        survivors = [entry for entry in of if entry.verdict.state == "survived"]
        explained = sum(bool(explanation(entry.mutant, reasons)) for entry in survivors)
        numbers = (len(of), *map(state.count, ("refused", "same", "gone")), count)
        more = (state.count("noticed"), len(survivors), explained)
        first = sum(entry.first == "noticed" for entry in of)
        rows.append((layer, *map(str, (*numbers, *more, first)), percent(more[0], count)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.ljust(width) if not column else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in rows
    ]
    whole, noticed, _, explained, first = map(int, rows[-1][5:10])
    first_whole = sum(counts(entry.first) for entry in entries)
    lines += [
        "",
        f"{noticed} of {whole} noticed, {percent(noticed, whole)}; "
        f"without the {explained} explained {noticed} of {whole - explained}, "
        f"{percent(noticed, whole - explained)}",
        f"when tried first: {first} of {first_whole} noticed, {percent(first, first_whole)}",
    ]
    unsteady = [name for entry in entries for name in entry.verdict.unsteady]
    if unsteady:
        lines.append(f"failed, and passed when run alone: {', '.join(sorted(set(unsteady)))}")
    for entry in sorted(entries, key=lambda entry: layers.index(entry.layer)):
        if entry.verdict.state not in ("survived", "gone"):
            continue
        mutant = entry.mutant
        lines += [
            "",
            f"{entry.verdict.state}: {mutant.file}:{mutant.line} ({mutant.operator})",
            f"- {mutant.was.strip()}",
            f"+ {mutant.now.strip()}",
        ]
        if entry.verdict.ran:
            lines.append(f"  ran: {'; '.join(entry.verdict.ran)}")
        if why := explanation(mutant, reasons):
            lines.append(f"  explained: {why}")
    return "\n".join(lines) + "\n"


class Kept:
    """The results, as a file; started again for another seed."""

    def __init__(self, file: Path, seed: int, fresh: bool, commit: str = "") -> None:
        self.file = file
        self.seed = seed
        self.commit = commit
        self.entries: list[Entry] = []
        if fresh or not file.exists():
            return
        read = json.loads(file.read_text())
        if read["seed"] == seed:
            self.entries = [
                Entry(
                    **{
                        **row,
                        "mutant": Mutant(**row["mutant"]),
                        "verdict": Verdict(**row["verdict"]),
                    }
                )
                for row in read["entries"]
            ]

    def known(self, layer: str, mutant: Mutant, source: str) -> Entry | None:
        """What became of it when it was tried, if it was."""
        for entry in self.entries:
            if (entry.layer, entry.mutant, entry.source) == (layer, mutant, source):
                return entry
        return None

    def put(self, entry: Entry, before: Entry | None = None) -> None:
        """Stores `entry`, replacing `before` if that is there; writes the file."""
        if before is None:
            self.entries.append(entry)
        else:
            entry.first = before.first
            self.entries[self.entries.index(before)] = entry
        what = {
            "seed": self.seed,
            "commit": self.commit,
            "entries": [dataclasses.asdict(entry) for entry in self.entries],
        }
        self.file.write_text(json.dumps(what, indent=1) + "\n")


def kept_baseline(tree: Tree, step: Step, file: Path) -> Baseline:
    """Runs all tests of the program or files; again if they or the tested code changed."""
    step = Step(step.name)
    rows = json.loads(file.read_text()) if file.exists() else {}
    fingerprint = tree.fingerprint(step)
    row = rows.get(step.name)
    if row is None or row["fingerprint"] != fingerprint:
        begin = time.monotonic()
        found = baseline_of(tree, step)
        failing = f", without {' '.join(found.failing)}" if found.failing else ""
        seconds = time.monotonic() - begin
        print(f"{step.name}: {found.tests} tests, {seconds:.0f} s{failing}", flush=True)
        row = {"fingerprint": fingerprint, "found": dataclasses.asdict(found)}
        rows[step.name] = row
        file.write_text(json.dumps(rows, indent=1) + "\n")
    return Baseline(**row["found"])


def told(entry: Entry) -> str:
    verdict = entry.verdict
    by = f" by {verdict.by}" if verdict.by else ""
    mutant = entry.mutant
    change = f"{mutant.was.strip()}  ->  {mutant.now.strip()}"
    where = f"{mutant.file}:{mutant.line} ({mutant.operator})"
    return f"{verdict.state:9} {verdict.seconds:5.0f} s  {where}{by}\n{'':19}{change}"


def version() -> str:
    """Of the sources."""
    found = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert found
    return found[1]


class Trials:
    """Tries mutants in a tree that is built, against tests whose baselines are kept."""

    def __init__(self, tree: Tree, baselines: Path, jobs: int) -> None:
        self.tree = tree
        self._file = baselines
        self._jobs = jobs
        self._unchanged = tree.objects()
        self._baselines: dict[str, Baseline] = {}

    def prepare(self, layer: str) -> None:
        """Before a layer's mutants: links the last mutant's programs, runs missing baselines."""
        self.tree.build([], self._jobs, keep=True)
        for step in steps_of(layer):
            if step.name not in self._baselines:
                self._baselines[step.name] = kept_baseline(self.tree, step, self._file)

    def digest(self, file: str) -> str:
        """Of a source, by which a mutant of it stays known."""
        path = self.tree.root / file
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.exists() else ""

    def text(self, file: str) -> str:
        """Of a source, nothing where it is no more."""
        path = self.tree.root / file
        return path.read_text() if path.exists() else ""

    def entry_of(self, layer: str, mutant: Mutant) -> Entry:
        """What becomes of it. The layer was prepared."""
        steps = beside(self.tree.root, layer, mutant.file) + steps_of(layer)
        verdict = tried(self.tree, mutant, steps, self._baselines, self._unchanged, self._jobs)
        entry = Entry(layer, mutant, self.digest(mutant.file), verdict)
        print(told(entry), flush=True)
        return entry


def sampled(
    trials: Trials, layers: list[str], each: int, kept: Kept, reasons: Reasons
) -> list[Entry]:
    """Tries a sample of each layer, except mutants with a result that need no repetition."""
    root, users = trials.tree.root, trials.tree.users()
    entries: list[Entry] = []
    for layer in layers:
        trials.prepare(layer)
        mutants = [
            mutant
            for name in sources_of(root, layer)
            if 0 < users.get(name, 0) <= MOST_USERS
            for mutant in mutants_of(name, (root / name).read_text())
        ]
        of_layer: list[Entry] = []
        for mutant in drawn(mutants, f"{kept.seed} {layer}")[: MOST_DRAWN * each]:
            if sum(entry.counts for entry in of_layer) == each:
                break
            known = kept.known(layer, mutant, trials.digest(mutant.file))
            entry = known
            hopeful = not explanation(mutant, reasons)
            if entry is None or (entry.verdict.state == "survived" and hopeful):
                entry = trials.entry_of(layer, mutant)
                kept.put(entry, known)
            of_layer.append(entry)
        entries += of_layer
        tell(kept, entries, f"{each} changes of each layer", reasons)
    return entries


def tell(kept: Kept, entries: list[Entry], what: str, reasons: Reasons) -> None:
    """Writes the report for readers."""
    head = f"Ropewalk {version()}: seed {kept.seed}, {what}"
    kept.file.with_suffix(".txt").write_text(f"{head}\n\n{report(entries, reasons)}")


def followed(mutant: Mutant, text: str) -> Mutant | None:
    """The same change of the line as it stands in `text`, the nearest of this wording."""
    lines = enumerate(text.split("\n"), 1)
    found = [line for line, words in lines if words.strip() == mutant.was.strip()]
    if not found:
        return None
    line = min(found, key=lambda line: abs(line - mutant.line))
    was = text.split("\n")[line - 1]
    lead = was[: len(was) - len(was.lstrip())]
    return dataclasses.replace(mutant, line=line, was=was, now=lead + mutant.now.lstrip())


def once_more(trials: Trials, places: list[str], kept: Kept, reasons: Reasons) -> list[Entry]:
    """Repeats the mutants at these locations (FILE, FILE:LINE), or all that are stale."""
    entries: list[Entry] = []
    for before in list(kept.entries):
        mutant = before.mutant
        same = before.source == trials.digest(mutant.file)
        open_ = before.verdict.state == "survived" and not explanation(mutant, reasons)
        stale = STALE in places and before.counts and (open_ or not same)
        if not stale and not {mutant.file, f"{mutant.file}:{mutant.line}"} & {*places}:
            continue
        now = mutant if same else followed(mutant, trials.text(mutant.file))
        if now is None:
            entry = dataclasses.replace(before, verdict=Verdict("gone"))
            print(told(entry), flush=True)
        else:
            trials.prepare(before.layer)
            entry = trials.entry_of(before.layer, now)
        entries.append(entry)
        kept.put(entry, before)
    tell(kept, kept.entries, f"as of {kept.commit}", reasons)
    return entries


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mutants", type=int, default=60, help="that count, over all layers")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--layers", nargs="*", default=[], choices=[*TESTS, []])
    parser.add_argument("--again", nargs="*", default=[], help="FILE[:LINE]... or stale")
    parser.add_argument("--fresh", action="store_true", help="forget what was tried before")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="of the compiler")
    parser.add_argument("--python", type=Path, default=Path(sys.executable))
    parser.add_argument("--configure", nargs=argparse.REMAINDER, default=[], help="for cmake")
    options = parser.parse_args()

    layers = options.layers or list(TESTS)
    adopt_orphans()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("SIGTERM"))  # so that the tests end, too
    folder = ROOT / "build" / "mutants"
    tree = Tree(ROOT, folder / "tree", options.python.absolute())
    tree.sync()
    tree.configure(options.configure)
    print("building the unchanged tree", flush=True)
    built = tree.build([], options.jobs, keep=True)
    if built.returncode != 0:
        sys.exit(built.stdout[-4000:])

    reasons = explanations()
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    kept = Kept(folder / "report.json", options.seed, options.fresh, commit)
    trials = Trials(tree, folder / "baselines.json", options.jobs)
    if options.again:
        entries = once_more(trials, options.again, kept, reasons)
    else:
        each = -(-options.mutants // len(layers))
        entries = sampled(trials, layers, each, kept, reasons)
    text = report(entries, reasons)
    print(f"\n{text}")
    if any(
        entry.verdict.state == "survived" and not explanation(entry.mutant, reasons)
        for entry in entries
    ):
        sys.exit(1)


if __name__ == "__main__":
    main()
