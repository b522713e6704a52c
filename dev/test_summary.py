"""Prints "N passed, N failed, N skipped" over JUnit files. Usage: test_summary.py FILE..."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path


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


def main() -> None:
    totals = [0, 0, 0]
    for name in sys.argv[1:]:
        try:
            found = counts(Path(name).read_text())
        except (OSError, ElementTree.ParseError) as error:
            print(f"{name}: no result: {error}")
            found = (0, 1, 0)  # a runner that died counts as one failure
        totals = [total + more for total, more in zip(totals, found)]
    print("{} passed, {} failed, {} skipped".format(*totals))


if __name__ == "__main__":
    main()
