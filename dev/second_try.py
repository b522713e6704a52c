"""Runs ctest or pytest; the few tests that fail are run once more, one after another.

Usage: second_try.py JUNIT_FILE COMMAND...

COMMAND is ctest's, pytest's, or `PYTHON dev/unit_tests.py ...`, which runs what ctest lists: its
tests run again by ctest, each in a process of its own.

Many tests depend on timing between processes, and machines sometimes run nothing for a second. A
test that passes the second time counts as passed and is named as unsteady, in the output and in the
file RW_FAILURES, so that somebody examines it. A test whose output has a sanitizer's report, which
load cannot cause, is not repeated, nor are tests when more than a handful fail.

RW_FAILURES: a file to which each failure's last lines are appended: the log's end can then show
them. RW_UNSTEADY: a file to which the names of unsteady tests are appended, to count those of all
parts. Exit status: 0, or the runner's own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from gtest_process import REPORT
from test_summary import has_failed

MOST = 5
LINES = 40
COLUMNS = 200
TESTS_FAILED = {"ctest": 8, "pytest": 1}  # the exit status that says just that


def cases_of(junit: Path) -> tuple[ElementTree.Element, list[ElementTree.Element]]:
    """The file's root and its tests; none where the runner wrote no such file."""
    try:
        root = ElementTree.parse(junit).getroot()
    except (OSError, ElementTree.ParseError):
        root = ElementTree.Element("testsuite")
    return root, list(root.iter("testcase"))


def name_of(case: ElementTree.Element) -> str:
    """The name that ctest has, or pytest's module and name."""
    name, place = case.get("name", ""), case.get("classname", "")
    return name if place in ("", name) else f"{place}::{name}"


def output_of(case: ElementTree.Element) -> str:
    return "\n".join(
        part.text or "" for part in case if part.tag in ("failure", "error", "system-out")
    )


def told(case: ElementTree.Element) -> str:
    """The last lines of what a test printed, cut to a width."""
    lines = [line[:COLUMNS] for line in output_of(case).splitlines() if line.strip()]
    return "\n".join([f"--- {name_of(case)[:COLUMNS]}", *lines[-LINES:]])


def is_pytest(command: list[str]) -> bool:
    return "pytest" in command


def with_junit(command: list[str], junit: Path) -> list[str]:
    if is_pytest(command):
        return [*command, f"--junit-xml={junit}"]
    return [*command, "--output-junit", str(junit)]


def again(command: list[str], names: list[str]) -> list[str]:
    """The command that runs only what failed, one test at a time."""
    if is_pytest(command):
        return [*command, "--last-failed", "--last-failed-no-failures", "none", "-n", "0"]
    at = command.index("--test-dir")
    runner, folder = command[:at], command[at : at + 2]
    if Path(runner[-1]).name == "unit_tests.py":
        runner = [*runner[:-2], "ctest"]
    exactly = "^(" + "|".join(re.escape(name) for name in names) + ")$"
    return [*runner, *folder, "--output-on-failure", "--no-tests=error", "-R", exactly]


def append(variable: str, lines: list[str]) -> None:
    """To the file that an environment variable names, if it is set."""
    if lines and os.environ.get(variable):
        with Path(os.environ[variable]).open("a") as out:
            out.write("".join(f"{line}\n" for line in lines))


def second_try(command: list[str], junit: Path) -> int:
    """Exit status after both runs; `junit` then has the results after both."""
    status = subprocess.run(with_junit(command, junit), check=False).returncode
    if status == 0:
        return 0
    root, cases = cases_of(junit)
    failed = [case for case in cases if has_failed(case)]
    text = "\n".join(map(told, failed[:MOST]))
    runner = "pytest" if is_pytest(command) else "ctest"
    worth_it = (
        0 < len(failed) <= MOST
        and status == TESTS_FAILED[runner]
        and not any(REPORT.search(output_of(case)) for case in failed)
    )
    unsteady: list[str] = []
    if worth_it:
        print(f"=== once more, alone: {len(failed)} of {runner}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            second = Path(folder) / "second.xml"
            subprocess.run(
                with_junit(again(command, [name_of(case) for case in failed]), second), check=False
            )
            _, cases = cases_of(second)
        passed = {
            name_of(case) for case in cases if not has_failed(case) and case.find("skipped") is None
        }
        for case in failed:
            if name_of(case) in passed:
                unsteady.append(name_of(case))
                for part in list(case):
                    if part.tag in ("failure", "error"):
                        case.remove(part)
                case.set("status", "run")
        ElementTree.ElementTree(root).write(junit)
    for name in unsteady:
        text += f"\nunsteady: failed, and passed when run alone: {name}"
        print(f"unsteady: failed, and passed when run alone: {name}", flush=True)
    append("RW_FAILURES", [text] if text else [])
    append("RW_UNSTEADY", unsteady)
    return 0 if failed and len(unsteady) == len(failed) else status


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(second_try(sys.argv[2:], Path(sys.argv[1]).resolve()))
