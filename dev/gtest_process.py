"""Several cases of a GoogleTest program in one process, and what became of each.

A process that dies in a case costs that case alone: those after it run in a new process. Where a
process ends with an error though none of its cases failed, as after a leak found at its end, each
case runs in a process of its own, so that the right one is named.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import select
import signal
import subprocess
import tempfile
import time

RUN = "[ RUN      ] "
OK, SKIPPED, FAILED = "[       OK ] ", "[  SKIPPED ] ", "[  FAILED  ] "
# What a sanitizer reports, also where the program goes on after it.
REPORT = re.compile(
    r"ERROR: \w+Sanitizer|WARNING: ThreadSanitizer|runtime error: |UndefinedBehavior"
)
POLL_SECONDS = 1.0


@dataclasses.dataclass(frozen=True)
class Case:
    """A test as ctest lists it; `filter` is its name in GoogleTest, empty for other programs."""

    name: str
    command: tuple[str, ...]
    folder: str
    environment: tuple[str, ...]
    timeout: float
    filter: str = ""


@dataclasses.dataclass
class Result:
    """`status` is as in ctest's JUnit files: run, fail or notrun, the last for a skipped case."""

    case: Case
    status: str
    seconds: float
    output: str


@dataclasses.dataclass
class Ended:
    """A process that ended; `why` is empty, or says how it failed."""

    why: str
    output: str
    seconds: float


def kill(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and those that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def has_ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Waits for a process for a time, without polling as Popen.wait does."""
    try:
        handle = os.pidfd_open(process.pid)
    except (AttributeError, OSError):  # before Python 3.9 and Linux 5.3
        time.sleep(min(seconds, 0.02))
        return process.poll() is not None
    try:
        select.select([handle], [], [], seconds)
    finally:
        os.close(handle)
    return process.poll() is not None


def run_process(command: list[str], case: Case, niceness: int) -> Ended:
    """Runs a command in the folder and environment of `case`. Each case has the latter's timeout.

    Output goes to a file rather than a pipe, which processes left behind would keep open.
    """
    begun = since = time.monotonic()
    if niceness:
        command = ["nice", "-n", str(niceness), *command]
    with tempfile.TemporaryFile() as out:
        try:
            process = subprocess.Popen(
                command,
                cwd=case.folder or None,
                env={**os.environ, **dict(item.split("=", 1) for item in case.environment)},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            return Ended(f"cannot be started: {error}", "", 0.0)
        read, why = 0, ""
        try:
            while True:
                if has_ended(process, POLL_SECONDS):
                    break
                size = os.fstat(out.fileno()).st_size
                if RUN.encode() in os.pread(out.fileno(), size - read, read):
                    since = time.monotonic()
                read = max(0, size - len(RUN))
                if time.monotonic() - since > case.timeout:
                    why = f"Timeout: more than {case.timeout:g} s"
                    break
        finally:
            if process.returncode is None:
                kill(process)
        out.seek(0)
        text = out.read().decode(errors="replace")
    if not why and process.returncode < 0:
        why = f"ended by signal {-process.returncode}"
    elif not why and process.returncode > 0:
        why = f"exit status {process.returncode}"
    return Ended(why, text, time.monotonic() - begun)


def run_alone(case: Case, niceness: int) -> Result:
    """One case in a process of its own, judged as ctest does."""
    ended = run_process(list(case.command), case, niceness)
    status = "fail" if ended.why else "run"
    if case.filter and not ended.why and SKIPPED.strip() in ended.output:
        status = "notrun"
    text = f"{ended.output}\n{ended.why}\n" if ended.why else ended.output
    return Result(case, status, ended.seconds, text)


def sections(output: str, cases: list[Case]) -> list[tuple[Case, str, str]]:
    """Each case that began, in the order of the output: how it ended, and what it printed.

    How: OK, SKIPPED, FAILED, or empty for a case that did not end.
    """
    by_filter = {case.filter: case for case in cases}
    found = []
    pieces = output.split(RUN)[1:]
    for piece in pieces:
        name = piece.split("\n", 1)[0]
        case = by_filter.pop(name, None)
        if case is None:
            continue  # printed by a test, not by GoogleTest
        ends = [
            how
            for how in (OK, SKIPPED, FAILED)
            if re.search(re.escape(how + name) + r"\b.* ms\)", piece)
        ]
        found.append((case, ends[0] if ends else "", RUN + piece))
    return found


def duration(text: str) -> float:
    """Seconds, of the line that ends a case's output."""
    told = re.findall(r" \((\d+) ms\)", text)
    return int(told[-1]) / 1e3 if told else 0.0


def attempt(cases: list[Case], niceness: int) -> tuple[list[Result], list[Case]]:
    """Runs cases in one process: results, and the cases that did not begin."""
    command = [
        cases[0].command[0],
        "--gtest_filter=" + ":".join(case.filter for case in cases),
        "--gtest_color=no",
        *(word for word in cases[0].command[1:] if not word.startswith("--gtest_filter=")),
    ]
    ended = run_process(command, cases[0], niceness)
    results = []
    for case, how, text in sections(ended.output, cases):
        status = {OK: "run", SKIPPED: "notrun"}.get(how, "fail")
        if ended.why and REPORT.search(text):
            status = "fail"
        if not how:
            text = f"{text}\n{ended.why or 'ended early'}\n"
        results.append(Result(case, status, duration(text), text))
    begun = {result.case.name for result in results}
    rest = [case for case in cases if case.name not in begun]
    if ended.why and not any(result.status == "fail" for result in results):
        # Something after the last case, or before the first.
        alone = [run_alone(case, niceness) for case in cases]
        if not any(result.status == "fail" for result in alone):
            alone[-1].status = "fail"
            alone[-1].output = f"{ended.output}\n{len(cases)} cases in one process: {ended.why}\n"
        return alone, []
    return results, rest


def run_cases(cases: list[Case], niceness: int = 0) -> list[Result]:
    """All cases, of one program, in as few processes as they survive."""
    results: list[Result] = []
    rest = cases
    while rest:
        if len(rest) == 1 or not rest[0].filter:
            results.append(run_alone(rest[0], niceness))
            rest = rest[1:]
            continue
        some, left = attempt(rest, niceness)
        if not some:  # none began
            some, left = [run_alone(rest[0], niceness)], rest[1:]
        results += some
        rest = left
    return results
