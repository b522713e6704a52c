"""Prints "N passed, N failed, N skipped" over JUnit files.

Usage: test_summary.py FILE... [--left-out FOLDER LABELS]
       test_summary.py --skipped FILE...
       test_summary.py --unsteady FILE MOST

With --left-out a line follows for each reason for which LABELS, a regular expression, leaves tests
of the build FOLDER out (cmake/test_labels.cmake). --skipped prints a line for each reason that the
skipped tests of the files gave themselves. --unsteady counts the names in a file that
dev/second_try.py wrote; exit status 1 when there are more than MOST.
"""

from __future__ import annotations

import collections
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any


def has_failed(case: ElementTree.Element) -> bool:
    """An error counts as a failure."""
    return case.find("failure") is not None or case.find("error") is not None


def counts(text: str) -> tuple[int, int, int]:
    """Passed, failed and skipped tests of one file."""
    passed = failed = skipped = 0
    for case in ElementTree.fromstring(text).iter("testcase"):
        if has_failed(case):
            failed += 1
        elif case.find("skipped") is not None:
            skipped += 1
        else:
            passed += 1
    return passed, failed, skipped


def skipped(text: str) -> list[str]:
    """A line for each reason, most frequent first."""
    reasons = collections.Counter(
        (part.get("message") or "no reason given").strip().splitlines()[0]
        for part in ElementTree.fromstring(text).iter("skipped")
    )
    return [f"  skipped: {number}: {reason}" for reason, number in reasons.most_common()]


def labels_of(test: dict[str, Any]) -> list[str]:
    """The labels of a test as ctest reports them."""
    found: list[str] = next(
        (p["value"] for p in test.get("properties", []) if p["name"] == "LABELS"), []
    )
    return found


def left_out(rules: str, tests: list[dict[str, Any]], labels: str) -> list[str]:
    """A line for each rule of a label that is left out, and how many tests it has.

    A test counts for the first rule that has its program and name.
    """
    wanted = re.compile(labels)
    rest = [test for test in tests if any(map(wanted.fullmatch, labels_of(test)))]
    lines = []
    for rule in rules.splitlines():
        label, program, names, reason = rule.split("\t")
        if not wanted.fullmatch(label):
            continue
        its = [
            test
            for test in rest
            if label in labels_of(test)
            and re.search(names, test["name"])
            and Path(test.get("command", [""])[0]).name in (program, f"{program}_NOT_BUILT")
        ]
        rest = [test for test in rest if test not in its]
        which = f"all of {program}" if names == "." else f"{len(its)} of {program}, {names}"
        lines.append(f"  left out, {label}: {which}: {reason}")
    return lines


def left_out_of(folder: Path, labels: str) -> list[str]:
    listing = subprocess.run(
        ["ctest", "--test-dir", str(folder), "--show-only=json-v1"],
        check=True,
        capture_output=True,
        text=True,
    )
    rules = (folder / "test_labels.txt").read_text()
    return left_out(rules, json.loads(listing.stdout)["tests"], labels)


def unsteady(names: list[str], most: int) -> tuple[str, int]:
    """The report on tests that passed only when run again, and the exit status."""
    lines = [f"{len(names)} passed only at the second try", *(f"  {name}" for name in names)]
    if len(names) > most:
        lines.append(f"FAILED: more than {most} passed only at the second try")
    return "\n".join(lines), int(len(names) > most)


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--skipped"]:
        for name in arguments[1:]:
            print("\n".join(skipped(Path(name).read_text())))
        return 0
    if arguments[:1] == ["--unsteady"]:
        text, status = unsteady(Path(arguments[1]).read_text().splitlines(), int(arguments[2]))
        print(text)
        return status
    lines: list[str] = []
    if "--left-out" in arguments:
        at = arguments.index("--left-out")
        arguments, (folder, labels) = arguments[:at], arguments[at + 1 :]
        if labels:
            lines = left_out_of(Path(folder), labels)
    totals = [0, 0, 0]
    for name in arguments:
        try:
            found = counts(Path(name).read_text())
        except (OSError, ElementTree.ParseError) as error:
            print(f"{name}: no result: {error}")
            found = (0, 1, 0)  # a runner that died counts as one failure
        totals = [total + more for total, more in zip(totals, found)]
    print("{} passed, {} failed, {} skipped".format(*totals))
    print("".join(f"{line}\n" for line in lines), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
