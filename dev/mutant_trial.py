"""A tree of its own in which mutants are compiled and tested.

Nothing outside its folder is written, and what tests leave behind is ended: this process adopts the
orphans of the tests (a "subreaper"), and ends its children alone.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from mutant_sites import Mutant

PR_SET_CHILD_SUBREAPER = 36
GIBIBYTE = 1 << 30
# A slip in a size or a loop must not take the machine's memory or disk.
MOST_ADDRESSES = 64 * GIBIBYTE
MOST_DATA = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2  # not of files
MOST_FILE = 32 * GIBIBYTE  # a test maps a sparse one of 16
MOST_OUTPUT = GIBIBYTE // 4
# A test is taken to hang when it says nothing for some times what the longest took on its own; a
# machine has moments in which nothing runs.
TIMES_LONGEST = 4
SPARE_SECONDS = 20.0
# A test that fails beside others and passes alone is unsteady; this many are tolerated.
MOST_UNSTEADY = 3
# On the unchanged tree, whose tests' times are not known yet.
FIRST_SECONDS = 300.0
MOST_FAILING = 8


@dataclass(frozen=True)
class Step:
    """A test program, or files of pytest; `only` are gtest's patterns of the former's tests."""

    name: str
    only: tuple[str, ...] = ()

    @property
    def is_pytest(self) -> bool:
        """Whether it is files of pytest."""
        return self.name.endswith(".py")

    def told(self) -> str:
        """The step in words."""
        return " ".join((self.name, *self.only))


@dataclass
class Baseline:
    """How a step's tests do on the unchanged tree."""

    longest: float = 0.0
    failing: list[str] = field(default_factory=list)
    tests: int = 0


@dataclass
class Outcome:
    """How a run of a step ended."""

    passed: bool
    hung: bool
    tests: list[str]  # that failed, or the one that ran when the program ended
    output: str
    seconds: float


@dataclass
class Verdict:
    """What became of a mutant: refused, same, noticed or survived."""

    state: str
    by: str = ""
    ran: list[str] = field(default_factory=list)
    unsteady: list[str] = field(default_factory=list)
    seconds: float = 0.0


def adopt_orphans(adopt: bool = True) -> None:
    """From here on end_children() reaches all that tests start."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0)


def children() -> set[int]:
    """This process's children, from /proc."""
    found = set()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            status = (folder / "stat").read_text()
        except OSError:
            continue
        if int(status.rpartition(")")[2].split()[1]) == os.getpid():
            found.add(int(folder.name))
    return found


def end_children(but: set[int]) -> None:
    """Ends all others that are this process's children, also those that become it by that."""
    while others := children() - but:
        for child in others:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def reap(but: set[int]) -> None:
    """Reaps orphans that have ended, as init does, since tests check that they are gone."""
    while children() - but:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None or ended.si_pid in but:
            return
        os.waitpid(ended.si_pid, 0)


def _limits() -> None:
    """In the child: its errors are its own."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_ADDRESSES, MOST_ADDRESSES))
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_DATA, MOST_DATA))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_FILE, MOST_FILE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    Path("/proc/self/oom_score_adj").write_text("1000")


class Tree:
    """A copy of the sources with a build folder of its own."""

    def __init__(self, source: Path, root: Path, python: Path) -> None:
        self.source = source
        self.root = root
        self.build_folder = root / "build" / "release"
        self.python = python
        self._digests: dict[str, tuple[int, str]] = {}

    def sync(self) -> None:
        """Copies files that differ, removes files that no longer exist; without ignored ones."""
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=self.source,
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split("\0")
        wanted = {name for name in listed if name and (self.source / name).is_file()}
        kept = self.root / "build" / "files.json"
        before = set(json.loads(kept.read_text())) if kept.exists() else set()
        for name in sorted(before - wanted):
            (self.root / name).unlink(missing_ok=True)
        for name in sorted(wanted):
            new, old = self.source / name, self.root / name
            if old.is_symlink() or not old.exists() or old.read_bytes() != new.read_bytes():
                old.parent.mkdir(parents=True, exist_ok=True)
                old.unlink(missing_ok=True)
                shutil.copy(new, old, follow_symlinks=False)
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(sorted(wanted)))

    def configure(self, arguments: list[str]) -> None:
        """Once; a folder that is configured keeps its arguments."""
        if (self.build_folder / "build.ninja").exists():
            return
        subprocess.run(
            [
                "cmake",
                "-G",
                "Ninja",
                "-S",
                str(self.root),
                "-B",
                str(self.build_folder),
                *arguments,
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )

    def build(
        self, targets: list[str], jobs: int, *, keep: bool
    ) -> subprocess.CompletedProcess[str]:
        """Runs ninja; with `keep`, objects go to the compiler cache, if there is one."""
        environment = {**os.environ, **({} if keep else {"CCACHE_READONLY": "1"})}
        return subprocess.run(
            ["ninja", "-C", str(self.build_folder), "-j", str(jobs), *targets],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )

    def users(self) -> dict[str, int]:
        """How many objects were made from each source or header."""
        listing = subprocess.run(
            ["ninja", "-C", str(self.build_folder), "-t", "deps"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        count: dict[str, int] = {}
        for line in listing.splitlines():
            if line.startswith("    "):
                path = os.path.normpath(self.build_folder / line.strip())
                name = os.path.relpath(path, self.root)
                count[name] = count.get(name, 0) + 1
        return count

    def objects(self) -> dict[str, str]:
        """A digest of each object; files that were not written again are not read again."""
        found = {}
        for path in self.build_folder.rglob("*.o"):
            name, written = str(path), path.stat().st_mtime_ns
            known = self._digests.get(name)
            if known is None or known[0] != written:
                known = (written, hashlib.sha256(path.read_bytes()).hexdigest())
                self._digests[name] = known
            found[name] = known[1]
        return found

    def program(self, name: str) -> Path:
        """A test program: of a layer, or of tests/."""
        path = self.build_folder / name
        return path if path.exists() else self.build_folder / "tests" / name

    def fingerprint(self, step: Step) -> str:
        """A digest of the step's tests and, but for unit tests, of the libraries that they load."""
        tests = [self.root / name for name in step.name.split()]
        files = tests if step.is_pytest else [self.program(step.name)]
        if files[0].parent != self.build_folder:
            files += sorted(self.build_folder.glob("*.so"))
        digest = hashlib.sha256()
        for path in files:
            digest.update(path.read_bytes())
        return digest.hexdigest()

    def restore_objects(self, unchanged: dict[str, str], jobs: int) -> None:
        """Compiles the objects that a mutant changed; programs are linked only when needed."""
        stale = [name for name, digest in self.objects().items() if unchanged.get(name) != digest]
        if stale:
            names = [os.path.relpath(name, self.build_folder) for name in stale]
            done = self.build(names, jobs, keep=True)
            if done.returncode != 0:
                sys.exit(f"the unchanged sources do not compile:\n{done.stdout[-4000:]}")

    def command(self, step: Step, only: list[str], without: list[str]) -> list[str]:
        """Of gtest, `only` and `without` are patterns; of pytest, names of tests."""
        if step.is_pytest:
            skipped = [f"--deselect={name}" for name in without]
            what = only or step.name.split()
            flags = ["-x", "-vv", "-rfE", "-p", "no:cacheprovider"]
            return [str(self.python), "-m", "pytest", *flags, *skipped, *what]
        pattern = ":".join(only or step.only) or "*"
        if without:
            pattern += "-" + ":".join(without)
        return [
            str(self.program(step.name)),
            "--gtest_fail_fast",
            "--gtest_color=no",
            f"--gtest_filter={pattern}",
        ]

    def run(
        self,
        step: Step,
        quiet: float,
        only: list[str] | None = None,
        without: list[str] | None = None,
    ) -> Outcome:
        """Runs until it ends, has said nothing for `quiet` seconds, or says without end."""
        command = self.command(step, only or [], without or [])
        environment = {
            **os.environ,
            "RW_BUILD_DIR": str(self.build_folder),
            "PATH": f"{self.build_folder}:{os.environ['PATH']}",
            "PYTHONPATH": str(self.root / "python"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        if step.is_pytest:
            environment["ROPEWALK_LIBRARY"] = str(self.build_folder / "libropewalk.so.0")
        begin, before = time.monotonic(), children()
        with tempfile.TemporaryFile() as out:
            running = subprocess.Popen(
                command,
                cwd=self.root if step.is_pytest else self.build_folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_limits,
            )
            size, since, hung = 0, time.monotonic(), False
            try:
                while running.poll() is None and not hung:
                    reap({*before, running.pid})
                    time.sleep(0.05)
                    now = os.fstat(out.fileno()).st_size
                    if now != size:
                        size, since = now, time.monotonic()
                    hung = time.monotonic() - since > quiet or size > MOST_OUTPUT
            finally:
                if running.poll() is None:
                    os.killpg(running.pid, signal.SIGKILL)
                code = running.wait()
                end_children(before)
            out.seek(max(0, size - (1 << 20)))
            output = out.read().decode(errors="replace")
        passed = code == 0 and not hung
        tests = [] if passed else failed_tests(output, pytest=step.is_pytest)
        return Outcome(passed, hung, tests, output, time.monotonic() - begin)


_GTEST_FAILED = re.compile(r"^\[  FAILED  \] ([^\s,]+\.[^\s,]+)", re.MULTILINE)
_GTEST_RUNS = re.compile(r"^\[ RUN      \] (\S+)", re.MULTILINE)
_GTEST_TOOK = re.compile(r"^\[ +(?:OK|FAILED|SKIPPED) +\] (\S+) \((\d+) ms\)", re.MULTILINE)
_PYTEST_FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/.*?)(?: - .*)?$", re.MULTILINE)
_PYTEST_RUNS = re.compile(
    r"^(tests/\S+\.py::.*?) *(PASSED|SKIPPED|FAILED|ERROR|XFAIL|$)", re.MULTILINE
)


def failed_tests(output: str, *, pytest: bool) -> list[str]:
    """The tests that failed, or were running when the program ended."""
    failed = _PYTEST_FAILED if pytest else _GTEST_FAILED
    names = list(dict.fromkeys(failed.findall(output)))
    if names:
        return names
    if pytest:
        running = [name for name, state in _PYTEST_RUNS.findall(output) if not state]
    else:
        done = {name for name, _ in _GTEST_TOOK.findall(output)}
        running = [name for name in _GTEST_RUNS.findall(output) if name not in done]
    return running[-1:]


def suites_of(test: Path) -> tuple[str, ...]:
    """The patterns of the suites of a gtest source."""
    found = re.findall(r"^(?:TYPED_)?TEST(?:_F|_P)?\((\w+),", test.read_text(), re.MULTILINE)
    return tuple(f"{head}{suite}.*" for suite in sorted(set(found)) for head in ("", "*/"))


def baseline_of(tree: Tree, step: Step) -> Baseline:
    """Runs the step without what fails, as often as needed; `failing` is what fails alone, too."""
    found = Baseline()
    without: list[str] = []
    for _ in range(MOST_FAILING):
        done = tree.run(step, FIRST_SECONDS, without=without)
        took = [int(ms) / 1000 for _, ms in _GTEST_TOOK.findall(done.output)]
        found.tests = max(found.tests, len(took) or done.output.count(" PASSED"))
        # pytest gives no times per test; a test takes no longer than its file.
        found.longest = max([found.longest, *took] if took else [found.longest, done.seconds])
        if done.passed:
            return found
        without += done.tests
        for name in done.tests:
            if not tree.run(step, FIRST_SECONDS, only=[name]).passed:
                found.failing.append(name)
    sys.exit(f"{step.told()} fails on the unchanged tree:\n{done.output[-4000:]}")


def run_step(tree: Tree, step: Step, baseline: Baseline) -> tuple[str, list[str]]:
    """What noticed, empty when nothing did, and what failed once only.

    A test counts when it fails twice, the second time alone, as `make test` runs it.
    """
    quiet = TIMES_LONGEST * baseline.longest + SPARE_SECONDS
    unsteady: list[str] = []
    while True:
        first = tree.run(step, quiet, without=[*baseline.failing, *unsteady])
        if first.passed:
            return "", unsteady
        if not first.tests:  # before or after the tests
            second = tree.run(step, quiet, without=[*baseline.failing, *unsteady])
            if not second.passed:
                return f"{step.name} ends early" + (", hangs" if second.hung else ""), unsteady
            return "", unsteady
        again = tree.run(step, quiet, only=first.tests[:1])
        if not again.passed:
            return first.tests[0] + (" (hangs)" if again.hung else ""), unsteady
        unsteady += first.tests[:1]
        if len(unsteady) > MOST_UNSTEADY:
            return "", unsteady


def changed(tree: Tree, mutant: Mutant) -> str:
    """Writes the mutant into the tree; returns what the file held."""
    path = tree.root / mutant.file
    text = path.read_text()
    lines = text.split("\n")
    assert lines[mutant.line - 1] == mutant.was, f"{mutant.file}:{mutant.line} is another line"
    lines[mutant.line - 1] = mutant.now
    path.write_text("\n".join(lines))
    return text


def tried(
    tree: Tree,
    mutant: Mutant,
    steps: list[Step],
    baselines: dict[str, Baseline],
    unchanged: dict[str, str],
    jobs: int,
) -> Verdict:
    """Compiles a mutant and runs the steps until one notices it; the tree is then as before."""
    begin = time.monotonic()
    verdict = Verdict("same")
    text = changed(tree, mutant)
    try:
        for step in steps:
            # Pytest uses the libraries; whatever else it needs, no mutant changes.
            target = "runtime" if step.is_pytest else step.name
            if tree.build([target], jobs, keep=False).returncode != 0:
                verdict.state = "refused"
                break
            objects = tree.objects()
            if all(unchanged.get(name, "") == digest for name, digest in objects.items()):
                continue
            verdict.state = "survived"
            verdict.by, unsteady = run_step(tree, step, baselines[step.name])
            verdict.unsteady += unsteady
            verdict.ran.append(step.told())
            if verdict.by:
                verdict.state = "noticed"
                break
    finally:
        (tree.root / mutant.file).write_text(text)
        tree.restore_objects(unchanged, jobs)
    verdict.seconds = time.monotonic() - begin
    return verdict
