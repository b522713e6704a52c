"""The scripts behind .ci/run: they name what they leave out, and failures fail the run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DEV = Path(__file__).parents[2] / "dev"
SUMMARY = DEV / "test_summary.py"

needs_ctest = pytest.mark.skipif(shutil.which("ctest") is None, reason="no ctest")
needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="no git")


def run(command: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def ctest_folder(folder: Path) -> Path:
    """Three tests of one program, two with labels, as cmake/test_labels.cmake leaves them."""
    program = folder / "plan_test"
    program.write_text("#!/bin/sh\necho ran $1 >>ran\n")
    program.chmod(0o755)
    (folder / "CTestTestfile.cmake").write_text(
        "".join(f'add_test({name} "{program}" {name})\n' for name in ("Quick", "Long", "Blind"))
        + "set_tests_properties(Long PROPERTIES LABELS slow)\n"
        + 'set_tests_properties(Blind PROPERTIES LABELS "sanitizer-blind")\n'
    )
    (folder / "test_labels.txt").write_text(
        "slow\tplan_test\t^Long\tminutes of arithmetic\n"
        "sanitizer-blind\tplan_test\tBlind\tbetween processes\n"
    )
    return folder


@needs_ctest
def test_labelled_tests_are_left_out_and_named_with_their_reason(tmp_path: Path) -> None:
    folder, told = ctest_folder(tmp_path), tmp_path / "summary"
    command = [str(DEV / "run-sanitized"), str(folder), "1", "slow|sanitizer-blind"]
    done = run(command, DEV.parent, RW_SUMMARY=str(told))
    assert done.returncode == 0, done.stdout + done.stderr
    assert (folder / "ran").read_text() == "ran Quick\n"
    assert told.read_text().splitlines() == [
        "1 passed, 0 failed, 0 skipped",
        "  left out, slow: 1 of plan_test, ^Long: minutes of arithmetic",
        "  left out, sanitizer-blind: 1 of plan_test, Blind: between processes",
    ]


@needs_ctest
def test_without_labels_all_run(tmp_path: Path) -> None:
    folder = ctest_folder(tmp_path)
    done = run([str(DEV / "run-sanitized"), str(folder), "1", ""], DEV.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (folder / "ran").read_text().split() == ["ran", "Quick", "ran", "Long", "ran", "Blind"]
    assert "left out" not in done.stdout


@needs_ctest
def test_a_test_that_fails_fails_the_sanitized_run(tmp_path: Path) -> None:
    folder = ctest_folder(tmp_path)
    (folder / "plan_test").write_text("#!/bin/sh\nexit 1\n")
    done = run([str(DEV / "run-sanitized"), str(folder), "1", "slow"], DEV.parent)
    assert done.returncode != 0
    assert "0 passed, 2 failed, 0 skipped" in done.stdout


@pytest.mark.parametrize("number", [0, 2, 3])
def test_more_than_two_unsteady_tests_fail_the_run(tmp_path: Path, number: int) -> None:
    names = tmp_path / "unsteady"
    names.write_text("".join(f"Some.Test{index}\n" for index in range(number)))
    done = run([sys.executable, str(SUMMARY), "--unsteady", str(names), "2"], tmp_path)
    assert done.returncode == (1 if number > 2 else 0)
    assert f"{number} passed only at the second try" in done.stdout
    assert done.stdout.count("Some.Test") == number


def test_reasons_of_skipped_tests_are_counted(tmp_path: Path) -> None:
    skips = "".join(
        f'<testcase name="{index}"><skipped message="{reason}"/></testcase>'
        for index, reason in enumerate(["no GPU", "no torch", "no GPU"])
    )
    junit = tmp_path / "junit.xml"
    junit.write_text(f"<testsuite>{skips}</testsuite>")
    done = run([sys.executable, str(SUMMARY), "--skipped", str(junit)], tmp_path)
    assert done.stdout == "  skipped: 2: no GPU\n  skipped: 1: no torch\n"


def git(folder: Path, *words: str) -> None:
    done = run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], folder)
    assert done.returncode == 0, done.stderr


class Tidied:
    """A repository with a main branch and sources, and a clang-tidy that records its arguments."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "tree"
        self.tools = folder / "tools"
        (self.folder / "src").mkdir(parents=True)
        self.tools.mkdir()
        self.tool('echo "tidied $4"')
        git(self.folder, "init", "-q", "-b", "main")
        self.commit("a.cc", "b.cc", "b_test.cc")

    def tool(self, script: str) -> None:
        path = self.tools / "clang-tidy"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def commit(self, *names: str) -> None:
        for name in names:
            with (self.folder / "src" / name).open("a") as out:
                out.write("int a;\n")
        git(self.folder, "add", "-A")
        git(self.folder, "commit", "-q", "-m", "a")

    def run(self, seconds: int = 60, *files: str, lacking: str = "") -> tuple[int, list[str], str]:
        """Exit status, the checked sources, and the output; the build has all sources but one."""
        build = self.folder.parent / "build"
        build.mkdir(exist_ok=True)
        entries = [
            {"file": str(path), "command": "c++", "directory": str(build)}
            for path in self.folder.glob("src/*.cc")
            if path.name != lacking
        ]
        (build / "compile_commands.json").write_text(json.dumps(entries, indent=1))
        done = run(
            [str(DEV / "run-tidy"), str(build), "1", str(seconds), *files],
            self.folder,
            PATH=f"{self.tools}:{os.environ['PATH']}",
        )
        looked = [line[7:] for line in done.stdout.splitlines() if line.startswith("tidied ")]
        return done.returncode, looked, done.stdout + done.stderr


@needs_git
def test_tidy_checks_sources_of_the_last_commit(tmp_path: Path) -> None:
    tree = Tidied(tmp_path)
    status, looked, told = tree.run()
    assert (status, looked) == (0, [])
    assert "skipped, there is no earlier commit" in told
    tree.commit("a.cc")
    assert tree.run()[:2] == (0, ["src/a.cc"])
    tree.commit("b.h")
    assert tree.run()[:2] == (0, ["src/b.cc", "src/b_test.cc"])


@needs_git
def test_tidy_checks_a_header_by_a_source_that_includes_it(tmp_path: Path) -> None:
    tree = Tidied(tmp_path)
    for name, included in (("user.cc", "outer.h"), ("outer.h", "inner.h"), ("inner.h", "outer.h")):
        (tree.folder / "src" / name).write_text(f'#include "{included}"\n')
    tree.commit("alone.h", "cuda.h", "cuda.cc")
    tree.commit("inner.h")
    assert tree.run()[:2] == (0, ["src/user.cc"])
    tree.commit("alone.h")
    assert tree.run()[:2] == (0, [])
    (tree.folder / "src" / "a.cc").write_text('#include "cuda.h"\n')
    tree.commit("a.cc")
    tree.commit("cuda.h")
    status, looked, told = tree.run(lacking="cuda.cc")
    assert (status, looked) == (0, ["src/a.cc"])
    assert "no part of this build: src/cuda.cc" in told


@needs_git
def test_tidy_checks_a_branchs_and_uncommitted_changes(tmp_path: Path) -> None:
    tree = Tidied(tmp_path)
    tree.commit("a.cc")
    git(tree.folder, "checkout", "-q", "-b", "other")
    tree.commit("b.cc")
    tree.commit("b_test.cc")
    (tree.folder / "src" / "new.cc").write_text("int b;\n")
    assert tree.run()[:2] == (0, ["src/b.cc", "src/b_test.cc", "src/new.cc"])


@needs_git
def test_tidy_names_sources_beyond_its_time(tmp_path: Path) -> None:
    tree = Tidied(tmp_path)
    tree.tool("sleep 30")
    status, _, told = tree.run(1, "src/a.cc", "src/b.cc")
    assert status == 0
    assert "0 of 2 sources" in told
    assert "1 s did not suffice: src/a.cc src/b.cc" in told


@needs_git
def test_tidy_fails_where_clang_tidy_does(tmp_path: Path) -> None:
    tree = Tidied(tmp_path)
    tree.tool('echo "$4:1:1: error: no"; exit 1')
    status, _, told = tree.run(60, "src/a.cc")
    assert status != 0
    assert "src/a.cc:1:1: error" in told


@needs_git
def test_tidy_names_sources_that_the_build_lacks(tmp_path: Path) -> None:
    status, looked, told = Tidied(tmp_path).run(60, "src/cuda_only.cc", "src/a.cc")
    assert (status, looked) == (0, ["src/a.cc"])
    assert "no part of this build: src/cuda_only.cc" in told


PARTS = (
    *("lint", "asan", "fuzz", "tsan", "tidy-changed", "build", "cuda-architectures"),
    ".venv/.ready-torch",
)


def ci(folder: Path, failing: str = "") -> subprocess.CompletedProcess[str]:
    """.ci/run with parts that only print their name; `test` prints its environment."""
    (folder / ".ci").mkdir()
    shutil.copy(DEV.parent / ".ci" / "run", folder / ".ci")
    rules = [f"{part}:\n\t@echo part of {part}; test {part} != '{failing}'\n" for part in PARTS]
    rules.append("test:\n\t@cat $$RW_SUMMARY; echo '---'; cat $$RW_FAILURES $$RW_UNSTEADY\n")
    (folder / "Makefile").write_text(f".PHONY: test {' '.join(PARTS)}\n" + "".join(rules))
    return run([str(folder / ".ci" / "run")], folder)


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
def test_ci_runs_every_part_and_passes_times_to_the_test_run(tmp_path: Path) -> None:
    done = ci(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    ran = [line for line in done.stdout.splitlines() if line.startswith("part of ")]
    assert ran == [f"part of {part}" for part in PARTS]
    told = done.stdout.partition("=== test: make test TESTS=all\n")[2]
    assert told.count(": passed, ") == len(PARTS)
    assert told.count(" s of processors") == len(PARTS)


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
@pytest.mark.parametrize("failing", ["lint", "tsan"])
def test_ci_fails_by_one_part_and_runs_the_others(tmp_path: Path, failing: str) -> None:
    done = ci(tmp_path, failing)
    assert done.returncode != 0
    told = done.stdout.partition("=== test: make test TESTS=all\n")[2]
    assert told.count(": passed, ") == len(PARTS) - 1
    assert f"part of {failing}" in told.partition("---\n")[2]
    names = {"lint": "lint", "tsan": "thread sanitizer"}
    assert done.stdout.endswith(f"parts that failed: {names[failing]}\n")


def fuzz(folder: Path, scripts: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """dev/run-fuzzers over programs that are built already; b has seeds."""
    build, tools = folder / "build", folder / "tools"
    for made in (build, tools, folder / "src"):
        made.mkdir()
    programs = {tools / "ninja": "exit 0", **{build / n: text for n, text in scripts.items()}}
    for program, script in programs.items():
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
    for name in scripts:
        (folder / "src" / f"{name}.cc").touch()
    (folder / "src" / "b_fuzz.seeds").write_text("here/seeds\n")
    path = f"{tools}:{os.environ['PATH']}"
    told = str(folder / "summary")
    command = [str(DEV / "run-fuzzers"), str(build), "7", "2"]
    return run(command, folder, PATH=path, RW_SUMMARY=told, FUZZ_SEED="1")


def test_every_fuzzer_runs_with_its_seeds(tmp_path: Path) -> None:
    done = fuzz(tmp_path, {"a_fuzz": 'echo "a: $*"', "b_fuzz": 'echo "b: $*"'})
    assert done.returncode == 0, done.stdout + done.stderr
    for name in "ab":
        (line,) = [line for line in done.stdout.splitlines() if line.startswith(f"{name}: ")]
        assert "-max_total_time=7 -seed=1 " in line
        assert line.endswith("here/seeds") == (name == "b")
    assert (tmp_path / "summary").read_text() == "2 fuzzers, 7 s each\n"


def test_a_fuzzer_that_fails_fails_the_part_and_the_others_run(tmp_path: Path) -> None:
    done = fuzz(tmp_path, {"a_fuzz": "exit 77", "b_fuzz": "echo ran", "c_fuzz": "echo ran"})
    assert done.returncode != 0
    assert "a_fuzz FAILED with status 77" in done.stdout
    assert done.stdout.count("\nran\n") == 2


ARCHITECTURES = DEV / "cuda_architectures.py"


def nvcc(folder: Path, body: str) -> Path:
    """A stand-in that knows sm_80 and sm_90, and compiles by `body`."""
    path = folder / "nvcc"
    path.write_text(
        "#!/bin/sh\n"
        'case "$1" in\n'
        "--list-gpu-arch) echo compute_80; echo compute_90 ;;\n"
        "--version) echo release 13.0, V13 ;;\n"
        f"*) {body} ;;\n"
        "esac\n"
    )
    path.chmod(0o755)
    return path


def test_architectures_that_no_compiler_has_are_named(tmp_path: Path) -> None:
    told = tmp_path / "summary"
    command = [sys.executable, str(ARCHITECTURES), "--jobs", "1"]
    done = run(command, tmp_path, CUDACXX=str(nvcc(tmp_path, "exit 0")), RW_SUMMARY=str(told))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nvcc 13.0: sm_90: compiled" in done.stdout
    text = told.read_text()
    assert "skipped: nvcc 13.0: sm_120: this compiler does not have it" in text
    assert "skipped: NVRTC of CUDA 12: not installed" in text
    assert "compiled by none: sm_70" in text
    assert "2 compiled, 0 failed" in text


def test_a_kernel_that_does_not_compile_fails(tmp_path: Path) -> None:
    broken = nvcc(tmp_path, "echo no such instruction >&2; exit 1")
    done = run([sys.executable, str(ARCHITECTURES)], tmp_path, CUDACXX=str(broken))
    assert done.returncode == 1
    assert "sm_80: FAILED\nno such instruction" in done.stdout
