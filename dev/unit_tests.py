"""Runs the tests that ctest lists, with several cases of a program in each process.

Usage: unit_tests.py --test-dir FOLDER [-j JOBS] [-LE LABELS] [-R NAMES] [--output-junit FILE]

A process starts in 5 ms, in 80 ms under the address sanitizer, and in 300 ms where a library
measures its clock first, longer than most cases take. Labels, timeouts, environments, names and
results are ctest's, case by case; `ctest` by itself runs each case in a process of its own, as
dev/second_try.py does with those that fail.

Tests labelled `own_process` (cmake/test_schedule.cmake) have one to themselves. Tests with
RUN_SERIAL come first, one at a time; beside them run only tests labelled `arithmetic`
(cmake/test_schedule.cmake), with the lowest priority. Then all others. Those with the largest COST
begin first, so that no long one is left for the end.

Exit status: 0; 8 where tests failed, as from ctest; 1 where there are none.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections import deque
from pathlib import Path
from typing import Any

from gtest_process import Case, Result, run_cases

# Cases of one process, at most; and seconds, of those whose COST says what they take.
MOST_CASES = 32
MOST_SECONDS = 4.0
# Seconds of a case without COST.
USUAL_SECONDS = 0.05
FAILED_STATUS = 8
LOWEST_PRIORITY = 19


class Group:
    """Cases of one process."""

    def __init__(self, cases: list[Case], seconds: float, alone: bool, arithmetic: bool) -> None:
        self.cases = cases
        self.seconds = seconds
        self.alone = alone
        self.arithmetic = arithmetic


def properties_of(test: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each["value"] for each in test.get("properties", [])}


def case_of(test: dict[str, Any], properties: dict[str, Any]) -> Case:
    command = tuple(test.get("command", ()))
    filters = [word.split("=", 1)[1] for word in command if word.startswith("--gtest_filter=")]
    return Case(
        name=test["name"],
        command=command,
        folder=properties.get("WORKING_DIRECTORY", ""),
        environment=tuple(properties.get("ENVIRONMENT", ())),
        timeout=float(properties.get("TIMEOUT", 1500)),
        filter=filters[0] if len(filters) == 1 else "",
    )


def neighbours(case: Case) -> tuple[str, str]:
    """Cases of one suite with the same parameter stand together: they share what is costly."""
    suite, _, rest = case.filter.partition(".")
    return suite, rest.partition("/")[2]


def groups_of(tests: list[dict[str, Any]]) -> tuple[list[Group], list[Result]]:
    """What to run, longest first, and the tests that are disabled or not built."""
    alike: dict[tuple[Any, ...], list[tuple[Case, float]]] = {}
    groups, others = [], []
    for test in tests:
        properties = properties_of(test)
        case = case_of(test, properties)
        seconds = float(properties.get("COST", USUAL_SECONDS))
        alone = bool(properties.get("RUN_SERIAL", False))
        arithmetic = "arithmetic" in properties.get("LABELS", ())
        if properties.get("DISABLED"):
            others.append(Result(case, "disabled", 0.0, "Disabled"))
        elif not case.command:
            others.append(Result(case, "fail", 0.0, "not built"))
        elif alone or not case.filter or "own_process" in properties.get("LABELS", ()):
            groups.append(Group([case], seconds, alone, arithmetic))
        else:
            same = (case.command[0], case.folder, case.environment, case.timeout, arithmetic)
            alike.setdefault(same, []).append((case, seconds))
    for key, members in alike.items():
        # In the order in which suites and their parameters first appear.
        place: dict[tuple[str, ...], int] = {}
        for case, _ in members:
            suite, parameter = neighbours(case)
            place.setdefault((suite,), len(place))
            place.setdefault((suite, parameter), len(place))
        members.sort(key=lambda m: (place[neighbours(m[0])[:1]], place[neighbours(m[0])]))
        some: list[Case] = []
        total = 0.0
        for case, seconds in members:
            if some and (len(some) == MOST_CASES or total + seconds > MOST_SECONDS):
                groups.append(Group(some, total, False, key[-1]))
                some, total = [], 0.0
            some.append(case)
            total += seconds
        groups.append(Group(some, total, False, key[-1]))
    groups.sort(key=lambda group: -group.seconds)
    return groups, others


class Runner:
    """Threads that each take the next group; results are printed as they come."""

    def __init__(self, groups: list[Group], total: int) -> None:
        self.alone = deque(group for group in groups if group.alone)
        self.arithmetic = deque(g for g in groups if g.arithmetic and not g.alone)
        self.rest = deque(g for g in groups if not g.arithmetic and not g.alone)
        self.results: list[Result] = []
        self.total = total
        self._lock = threading.Lock()

    def report(self, results: list[Result]) -> None:
        """Keeps and prints results; the output of those that failed, too."""
        with self._lock:
            for result in results:
                self.results.append(result)
                word = {"run": "passed", "fail": "FAILED"}.get(result.status, "skipped")
                number = f"{len(self.results)}/{self.total}"
                print(f"{number:>11} {word} {result.seconds:7.2f} s {result.case.name}")
                if result.status == "fail":
                    print(result.output)
            sys.stdout.flush()

    def serial(self) -> None:
        """One after another."""
        while self.alone:
            self.report(run_cases(self.alone.popleft().cases))

    def work(self, until: threading.Event | None) -> None:
        """With `until`: arithmetic only, at the lowest priority, until the event is set."""
        while True:
            beside = until is not None and not until.is_set()
            with self._lock:
                if beside:
                    queues = [self.arithmetic]
                else:
                    queues = sorted(
                        (self.arithmetic, self.rest), key=lambda q: -q[0].seconds if q else 0.0
                    )
                queue = next((queue for queue in queues if queue), None)
                group = queue.popleft() if queue else None
            if group is None:
                return
            self.report(run_cases(group.cases, LOWEST_PRIORITY if beside else 0))

    def run(self, jobs: int) -> None:
        """All groups."""
        beside = min(jobs, os.cpu_count() or 1) if self.alone and jobs > 1 else 0
        over = threading.Event()
        threads = [threading.Thread(target=self.work, args=(over,)) for _ in range(beside)]
        for thread in threads:
            thread.start()
        self.serial()
        over.set()
        threads += [threading.Thread(target=self.work, args=(None,)) for _ in range(jobs)]
        for thread in threads[beside:]:
            thread.start()
        for thread in threads:
            thread.join()


def write_junit(path: Path, results: list[Result], seconds: float) -> None:
    """As ctest's --output-junit does."""
    suite = ElementTree.Element("testsuite", name="unit tests", time=f"{seconds:.3f}")
    for result in results:
        name = result.case.name
        status = result.status
        entry = ElementTree.SubElement(
            suite,
            "testcase",
            name=name,
            classname=name,
            time=f"{result.seconds:.3f}",
            status=status,
        )
        if status == "fail":
            ElementTree.SubElement(entry, "failure", message="Failed")
        elif status != "run":
            ElementTree.SubElement(entry, "skipped", message=status)
        text = "".join(c for c in result.output if c >= " " or c in "\n\t")
        ElementTree.SubElement(entry, "system-out").text = text
    ElementTree.ElementTree(suite).write(path)


def listed(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    command = ["ctest", "--test-dir", arguments.test_dir, "--show-only=json-v1"]
    for flag, value in (("-LE", arguments.label_exclude), ("-R", arguments.names)):
        command += [flag, value] if value else []
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: list[dict[str, Any]] = json.loads(done.stdout)["tests"]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--test-dir", required=True)
    parser.add_argument("-j", "--jobs", type=int, default=1)
    parser.add_argument("-LE", dest="label_exclude", default="")
    parser.add_argument("-R", dest="names", default="")
    parser.add_argument("--output-junit", type=Path)
    arguments = parser.parse_args()
    begun = time.monotonic()
    tests = listed(arguments)
    if not tests:
        print("no tests were found")
        return 1
    groups, others = groups_of(tests)
    runner = Runner(groups, len(tests))
    runner.report(others)
    runner.run(arguments.jobs)
    seconds = time.monotonic() - begun
    if arguments.output_junit:
        write_junit(arguments.output_junit, runner.results, seconds)
    failed = [result for result in runner.results if result.status == "fail"]
    print(f"{len(failed)} tests of {len(tests)} failed, {seconds:.0f} s")
    for result in failed:
        print(f"  {result.case.name}")
    return FAILED_STATUS if failed else 0


if __name__ == "__main__":
    sys.exit(main())
