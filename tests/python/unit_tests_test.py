"""dev/unit_tests.py: cases share a process, and each has the result that it has alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "dev" / "unit_tests.py"

pytestmark = pytest.mark.skipif(shutil.which("ctest") is None, reason="no ctest")

# Speaks as GoogleTest does. What a case does is in its name; RAN has a line for each process.
PROGRAM = """#!{python}
import os, signal, sys, time
names = next(a for a in sys.argv if a.startswith("--gtest_filter=")).split("=", 1)[1].split(":")
open("{ran}", "a").write(" ".join(names) + "\\n")
status = 0
for name in names:
    print(f"[ RUN      ] {{name}}", flush=True)
    print(f"in {{name}} {{os.environ.get('GIVEN', '')}} [  FAILED  ] Other.Case (1 ms)")
    end = "[       OK ]"
    if "Crashes" in name:
        os.kill(os.getpid(), signal.SIGSEGV)
    if "Hangs" in name:
        time.sleep(60)
    if "Leaves" in name:
        os._exit(0)
    if "Skips" in name:
        end = "[  SKIPPED ]"
    if "Fails" in name:
        end = "[  FAILED  ]"
        status = 1
    if "Races" in name:
        print("WARNING: ThreadSanitizer: data race")
        status = 66
    value = ", where GetParam() = 7" if "Fails" in name and "/" in name else ""
    print(f"{{end}} {{name}}{{value}} (12 ms)", flush=True)
    if "Leaks" in name:
        status = 23
    if "Together" in name and len(names) > 1:
        status = 24
sys.exit(status)
"""


class Listed:
    """A folder with tests of one program, as gtest_discover_tests makes it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ran = folder / "ran"
        self.program = folder / "some_test"
        self.program.write_text(PROGRAM.format(python=sys.executable, ran=self.ran))
        self.program.chmod(0o755)
        self.lines: list[str] = []

    def add(self, *names: str, **properties: str) -> None:
        for name in names:
            command = f'"{self.program}" "--gtest_filter={name}" --gtest_also_run_disabled_tests'
            self.lines.append(f"add_test([=[{name}]=] {command})\n")
            given = "".join(f' {key} "{value}"' for key, value in properties.items())
            self.lines.append(f"set_tests_properties([=[{name}]=] PROPERTIES TIMEOUT 20{given})\n")

    def run(self, *options: str) -> tuple[int, dict[str, str], str]:
        """Exit status, each case's outcome, and the output."""
        (self.folder / "CTestTestfile.cmake").write_text("".join(self.lines))
        junit = self.folder / "junit.xml"
        done = subprocess.run(
            [
                *(sys.executable, str(SCRIPT), "--test-dir", str(self.folder)),
                *("--output-junit", str(junit), *options),
            ],
            capture_output=True,
            text=True,
            timeout=60,
        )
        found = {}
        if junit.exists():
            for case in ElementTree.parse(junit).iter("testcase"):
                kinds = [part.tag for part in case if part.tag != "system-out"]
                found[case.get("name", "")] = kinds[0] if kinds else "passed"
        return done.returncode, found, done.stdout + done.stderr

    def processes(self) -> list[list[str]]:
        return [line.split() for line in self.ran.read_text().splitlines()]


@pytest.fixture
def tests(tmp_path: Path) -> Listed:
    return Listed(tmp_path)


def test_cases_share_a_process(tests: Listed) -> None:
    tests.add("A.One", "A.Two", "B.Skips")
    status, found, _ = tests.run()
    assert status == 0
    assert found == {"A.One": "passed", "A.Two": "passed", "B.Skips": "skipped"}
    assert tests.processes() == [["A.One", "A.Two", "B.Skips"]]


def test_cases_of_one_parameter_stand_together(tests: Listed) -> None:
    tests.add(*(f"P/C.Case{n}/{p}" for n in range(20) for p in ("Shm", "Tcp")))
    status, found, _ = tests.run("-j", "2")
    assert status == 0
    assert len(found) == 40
    first, second = sorted(tests.processes(), key=len, reverse=True)
    assert {name.rpartition("/")[2] for name in second} == {"Tcp"}
    assert len(first) == 32


def test_a_failure_costs_one_case(tests: Listed) -> None:
    tests.add("A.One", "A.Fails/1", "A.Two")
    status, found, output = tests.run()
    assert status == 8
    assert found == {"A.One": "passed", "A.Fails/1": "failure", "A.Two": "passed"}
    assert "in A.Fails/1" in output
    assert "in A.One" not in output


@pytest.mark.parametrize("end", ["Crashes", "Leaves", "Hangs"])
def test_a_process_that_ends_costs_one_case(tests: Listed, end: str) -> None:
    tests.add("A.One", f"A.{end}", "A.Two", "A.Three", TIMEOUT="2")
    status, found, output = tests.run()
    assert status == 8
    others = dict.fromkeys(("A.One", "A.Two", "A.Three"), "passed")
    assert found == {**others, f"A.{end}": "failure"}
    words = {"Crashes": "ended by signal 11", "Leaves": "ended early", "Hangs": "Timeout"}
    assert words[end] in output
    assert tests.processes()[1:] == [["A.Two", "A.Three"]]


@pytest.mark.parametrize("case", ["A.Leaks", "A.Races"])
def test_an_error_at_the_end_or_a_report_is_of_the_case_that_has_it(
    tests: Listed, case: str
) -> None:
    tests.add("A.One", case, "A.Two")
    status, found, _ = tests.run()
    assert status == 8
    assert found == {"A.One": "passed", case: "failure", "A.Two": "passed"}


def test_an_error_that_no_case_has_alone_is_one(tests: Listed) -> None:
    tests.add("A.One", "A.Together", "A.Two")
    status, found, output = tests.run()
    assert status == 8
    assert list(found.values()).count("failure") == 1
    assert "3 cases in one process: exit status 24" in output


def test_other_properties_make_other_processes(tests: Listed) -> None:
    tests.add("A.One", "A.Two")
    tests.add("A.Three", ENVIRONMENT="GIVEN=it")
    tests.add("A.Four", "A.Five", RUN_SERIAL="TRUE")
    tests.add("A.Six", DISABLED="TRUE")
    tests.add("A.Seven", LABELS="slow")
    status, found, _ = tests.run("-LE", "^(slow)$")
    assert status == 0
    assert found.pop("A.Six") == "skipped"
    assert list(found.values()) == ["passed"] * 5
    alone = [["A.Four"], ["A.Five"]]
    assert tests.processes()[:2] == alone
    assert sorted(tests.processes()[2:]) == [["A.One", "A.Two"], ["A.Three"]]


def test_long_cases_begin_first_and_share_nothing(tests: Listed) -> None:
    tests.add("A.One", "A.Two")
    tests.add("A.Long", COST="9")
    assert tests.run()[0] == 0
    assert tests.processes() == [["A.Long"], ["A.One", "A.Two"]]


def test_a_case_may_have_a_process_to_itself(tests: Listed) -> None:
    tests.add("A.One", "A.Two")
    tests.add("A.Own", "A.OwnToo", LABELS="own_process")
    assert tests.run()[0] == 0
    assert sorted(tests.processes()) == [["A.One", "A.Two"], ["A.Own"], ["A.OwnToo"]]


def test_beside_those_that_run_alone_arithmetic_does(tests: Listed) -> None:
    tests.add("A.Alone/Hangs", RUN_SERIAL="TRUE", TIMEOUT="3")
    tests.add("A.Sum", LABELS="arithmetic")
    tests.add("A.Other")
    status, found, _ = tests.run("-j", "2")
    assert (status, found["A.Sum"], found["A.Other"]) == (8, "passed", "passed")
    assert sorted(tests.processes()[:2]) == [["A.Alone/Hangs"], ["A.Sum"]]


def test_nothing_to_run_is_an_error(tests: Listed) -> None:
    tests.add("A.One")
    assert tests.run("-R", "Nothing")[0] == 1


def test_a_second_try_is_one_of_the_case_alone(tests: Listed) -> None:
    tests.add("A.One", "A.Together")
    (tests.folder / "CTestTestfile.cmake").write_text("".join(tests.lines))
    second = SCRIPT.with_name("second_try.py")
    command = [sys.executable, str(SCRIPT), "--test-dir", str(tests.folder)]
    done = subprocess.run(
        [sys.executable, str(second), str(tests.folder / "junit.xml"), *command],
        # Without the files in which a run of all tests keeps its own failures.
        env={key: os.environ[key] for key in os.environ.keys() - {"RW_FAILURES", "RW_UNSTEADY"}},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout
    assert "unsteady: failed, and passed when run alone: A." in done.stdout
    assert len(tests.processes()[-1]) == 1
