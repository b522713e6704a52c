"""Whether the rank that does otherwise is named: seeded trials with ranks that are processes.

In each trial 2 to 4 ranks call all-reduce; at a random step one of them sleeps, dies, or calls
another operation. Named rightly is

  sleeps   `ropewalk status`, asked meanwhile from outside, has it alone as absent, and this step
  dies     the other ranks' error names it, and their records (TRACE_FILE) miss it alone
  differs  the records have this step as different, with this rank on a side of its own

Usage: named_ranks.py [--trials N] [--seed N]. Exit status 1 when any was not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any, Optional

from rich.console import Console
from rich.progress import track
from ropewalk.calls import Reports, load, verdict
from ropewalk.calls import status as asking

DEADLINE_SECONDS = 60.0
KINDS = ("sleeps", "dies", "differs")


def run_rank(rank: int, trial: dict[str, Any], folder: Path) -> None:
    """A rank's process: the library is loaded here, after the fork."""
    os.environ |= {
        "ROPEWALK_RANK": str(rank),
        "ROPEWALK_WORLD_SIZE": str(trial["ranks"]),
        "ROPEWALK_RENDEZVOUS": f"local:{folder.name}",
        "ROPEWALK_TRACE_FILE": str(folder / "calls-%r.json"),
        "ROPEWALK_TUNE": "0",
        "ROPEWALK_TOPOLOGY_CACHE": "off",
    }
    import numpy as np
    import ropewalk

    data = np.ones(trial["count"], dtype="float32")
    try:
        with ropewalk.init() as comm:
            for step in range(1, trial["steps"] + 1):
                if rank == trial["rank"] and step == trial["step"]:
                    otherwise(comm, trial["kind"], data, folder)
                else:
                    comm.all_reduce(data)
    except ropewalk.Error as error:
        if trial["kind"] == "sleeps":
            raise
        (folder / f"error-{rank}").write_text(str(error))


def otherwise(comm: Any, kind: str, data: Any, folder: Path) -> None:
    if kind == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "sleeps":
        while not (folder / "go").exists():
            time.sleep(0.01)
        comm.all_reduce(data)
    elif len(data) % 2:
        comm.all_reduce(data, op="max")
    else:
        comm.reduce(data, root=0)


def wrong(trial: dict[str, Any], folder: Path, pids: list[int]) -> Optional[str]:
    """What was not named rightly; None when all was."""
    step, victim = trial["step"], trial["rank"]
    if trial["kind"] == "sleeps":
        said = wrong_while_asleep(trial, pids)
        (folder / "go").touch()
    else:
        said = None
    statuses = wait_all(pids)
    died = [rank for rank, status in enumerate(statuses) if status != 0]
    if died != ([victim] if trial["kind"] == "dies" else []):
        return f"ranks {died} ended in error"
    if trial["kind"] == "sleeps":
        return said
    (reports,) = load(sorted(folder.glob("calls-*.json")))
    judged = verdict.judge(reports)
    if trial["kind"] == "dies":
        if reports.missing != [victim]:
            return f"records of ranks {reports.missing} are missing"
        for rank in reports.by_rank:
            text = (folder / f"error-{rank}").read_text()
            if f"rank {victim}" not in text:
                return f"rank {rank}: {text}"
        return None
    for text in judged.mismatches:
        sides = text.partition("differs: ")[2].split("; ")
        if text.startswith(f"collective {step} differs") and any(
            side.startswith(f"rank {victim}: ") for side in sides
        ):
            return None
    return f"mismatches {judged.mismatches}"


def wrong_while_asleep(trial: dict[str, Any], pids: list[int]) -> Optional[str]:
    deadline = time.monotonic() + DEADLINE_SECONDS
    judged = None
    while time.monotonic() < deadline:
        for each in asking.of_this_host(64, 10.0).communicators:
            if not stands_still(each, trial, pids):
                continue
            judged = verdict.judge(each)
            right = judged.absent == [trial["rank"]] and (judged.under_way or "").startswith(
                f"collective {trial['step']},"
            )
            return None if right else f"absent {judged.absent} in {judged.under_way}"
        time.sleep(0.05)
    return "nobody waited"


def stands_still(reports: Reports, trial: dict[str, Any], pids: list[int]) -> bool:
    mine = {report.process for report in reports.by_rank.values()} == set(pids)
    waiting = [report for report in reports.by_rank.values() if report.waiting is not None]
    return mine and len(waiting) == trial["ranks"] - 1


def wait_all(pids: list[int]) -> list[int]:
    """Exit statuses; those that do not end are killed."""
    statuses: dict[int, int] = {}
    deadline = time.monotonic() + DEADLINE_SECONDS
    while len(statuses) < len(pids):
        for pid in pids:
            if pid not in statuses:
                got, status = os.waitpid(pid, os.WNOHANG)
                if got:
                    statuses[pid] = status
                elif time.monotonic() > deadline:
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
    return [statuses[pid] for pid in pids]


def trial_of(seed: int) -> dict[str, Any]:
    chance = random.Random(seed)
    ranks, steps = chance.randint(2, 4), chance.randint(1, 40)
    return {
        "ranks": ranks,
        "steps": steps,
        "step": chance.randint(1, steps),
        "rank": chance.randrange(ranks),
        "kind": chance.choice(KINDS),
        # From short calls, which go inline, to those that take several chunks.
        "count": int(2 ** chance.uniform(0, 20)),
    }


def run_trial(seed: int) -> tuple[str, Optional[str]]:
    trial = trial_of(seed)
    folder = Path(tempfile.mkdtemp(prefix="ropewalk-trial-"))
    pids = []
    try:
        for rank in range(trial["ranks"]):
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    run_rank(rank, trial, folder)
                    status = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(status)
            pids.append(pid)
        said = wrong(trial, folder, pids)
    except (OSError, ValueError, AssertionError) as error:
        said = f"{type(error).__name__}: {error}"
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except OSError:
                pass
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return trial["kind"], None if said is None else f"seed {seed}, {json.dumps(trial)}: {said}"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    tried: Counter[str] = Counter()
    right: Counter[str] = Counter()
    seeds = range(given.seed, given.seed + given.trials)
    console = Console(stderr=True)
    begin = time.monotonic()
    for seed in track(seeds, "trials", console=console, disable=not console.is_terminal):
        kind, said = run_trial(seed)
        tried[kind] += 1
        right[kind] += said is None
        if said is not None:
            print(said, flush=True)
        elif not console.is_terminal and sum(tried.values()) % 100 == 0:
            print(f"{sum(tried.values())} trials", file=sys.stderr, flush=True)
    for kind in KINDS:
        print(f"{kind}: {right[kind]} of {tried[kind]} named rightly")
    print(f"{time.monotonic() - begin:.0f} s")
    return 0 if right == tried else 1


if __name__ == "__main__":
    sys.exit(main())
