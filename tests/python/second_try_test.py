"""dev/second_try.py: what fails once is run again and named, unless a sanitizer reports it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "dev" / "second_try.py"
FAILS_ONCE = "if [ -e {0} ]; then exit 0; fi; touch {0}; echo no luck; exit 1"
REPORTS = [
    "==7==ERROR: AddressSanitizer: heap-use-after-free",
    "==7==ERROR: LeakSanitizer: detected memory leaks",
    "WARNING: ThreadSanitizer: data race - pid=7",
    "a.cc:1:2: runtime error: signed integer overflow: 1 + 2",
]


def run(tmp_path: Path, tests: dict[str, str]) -> tuple[int, str, dict[str, bool], str]:
    """Exit status, output, which tests stand as failed, and the file of failures."""
    lines = []
    for index, (name, script) in enumerate(tests.items()):
        script = script.format(tmp_path / f"ran-{index}")
        lines.append(f"add_test([=[{name}]=] /bin/sh -c [=[{script}]=])\n")
    (tmp_path / "CTestTestfile.cmake").write_text("".join(lines))
    junit, failures = tmp_path / "out.xml", tmp_path / "failures"
    command = ["ctest", "--test-dir", str(tmp_path), "--output-on-failure", "-j", "2"]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(junit), *command],
        env={
            "PATH": "/usr/bin:/bin",
            "RW_FAILURES": str(failures),
            "RW_UNSTEADY": str(tmp_path / "unsteady"),
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    failed = {
        case.get("name", ""): case.find("failure") is not None
        for case in ElementTree.parse(junit).iter("testcase")
    }
    return done.returncode, done.stdout, failed, failures.read_text() if failures.exists() else ""


pytestmark = pytest.mark.skipif(shutil.which("ctest") is None, reason="no ctest")


def test_all_pass(tmp_path: Path) -> None:
    assert run(tmp_path, {"good": "exit 0"})[::2] == (0, {"good": False})


def test_a_test_that_fails_once_passes_and_is_named(tmp_path: Path) -> None:
    name = 'A/B.C  # GetParam() = "x"'
    status, output, failed, told = run(tmp_path, {name: FAILS_ONCE, "good": "exit 0"})
    assert status == 0
    assert failed == {name: False, "good": False}
    assert f"unsteady: failed, and passed when run alone: {name}" in output
    assert "no luck" in told and "unsteady" in told
    assert (tmp_path / "unsteady").read_text() == f"{name}\n"


def test_a_test_that_fails_twice_has_failed(tmp_path: Path) -> None:
    status, output, failed, told = run(tmp_path, {"once": FAILS_ONCE, "bad": "echo why; exit 3"})
    assert status == 8
    assert failed == {"once": False, "bad": True}
    assert "why" in told and "alone: bad" not in output


@pytest.mark.parametrize("report", REPORTS)
def test_no_second_time_after_a_sanitizers_report(tmp_path: Path, report: str) -> None:
    script = FAILS_ONCE.replace("no luck", report)
    status, output, failed, told = run(tmp_path, {"reported": script})
    assert status == 8
    assert failed == {"reported": True}
    assert "once more" not in output and report in told


def test_a_second_time_after_a_sanitizers_own_crash(tmp_path: Path) -> None:
    crash = "==7==LeakSanitizer has encountered a fatal error."
    status, _, failed, told = run(tmp_path, {"crashed": FAILS_ONCE.replace("no luck", crash)})
    assert status == 0
    assert failed == {"crashed": False}
    assert crash in told and "unsteady" in told


def test_no_second_time_when_many_fail(tmp_path: Path) -> None:
    status, output, failed, _ = run(tmp_path, {f"t{i}": FAILS_ONCE for i in range(6)})
    assert status == 8
    assert all(failed.values())
    assert "once more" not in output


def test_pytest(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "from pathlib import Path\n"
        "def test_once():\n"
        "    mark = Path(__file__).with_name('ran')\n"
        "    there = mark.exists()\n"
        "    mark.touch()\n"
        "    assert there, 'no luck'\n"
        "def test_good():\n"
        "    pass\n"
    )
    junit = tmp_path / "out.xml"
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadfile", "test_it.py"]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(junit), *command],
        env={"PATH": "/usr/bin:/bin"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "alone: test_it::test_once" in done.stdout
    assert all(case.find("failure") is None for case in ElementTree.parse(junit).iter("testcase"))
