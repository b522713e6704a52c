"""dev/mutants.py: the code that it changes, the code that it leaves alone, and its report on a
small project."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "dev"))

import mutant_trial as trial  # noqa: E402
import mutants  # noqa: E402
from mutant_sites import Mutant, code_of, mutants_of  # noqa: E402

CHANGES = [
    ("boundary", "if (a < b) {", "if (a <= b) {"),
    ("equality", "x = a == b;", "x = a != b;"),
    ("logic", "return a && b;", "return a || b;"),
    ("condition", "} else if (lost(a, b)) {", "} else if (!(lost(a, b))) {"),
    ("negation", "if (!found) return 1;", "if (found) return 1;"),
    ("arithmetic", "x = a + b;", "x = a - b;"),
    ("off by one", "x = a[size - 1];", "x = a[size];"),
    ("bits", "x = a & b;", "x = a | b;"),
    ("assignment", "done |= step();", "done = step();"),
    ("number", "constexpr int kSlots = 8;", "constexpr int kSlots = 9;"),
    ("truth", "stopped = true;", "stopped = false;"),
    ("extreme", "x = std::min(a, b);", "x = std::max(a, b);"),
    (
        "order",
        "flag.store(1, std::memory_order_release);",
        "flag.store(1, std::memory_order_relaxed);",
    ),
    ("unit", "wait(std::chrono::milliseconds(10));", "wait(std::chrono::microseconds(10));"),
    ("statement", "link->mark.store(n);", "(void)0;"),
    ("statement", "if (last) condition_.notify_all();", "if (last) (void)0;"),
    ("statement", "call_.tag = tag;", "(void)0;"),
    ("statement", "++seen_;", "(void)0;"),
    ("result", "return size_of(type);", "return {};"),
    ("key", "return tie(a.x, a.y) < tie(b.x, b.y);", "return tie(a.x) < tie(b.x);"),
    ("key", "const Key key{count, scalar, type};", "const Key key{count, {}, type};"),
    ("exchange", "copy(to, from, bytes);", "copy(from, to, bytes);"),
    # What stands beside the change stays as it was.
    ("logic", 'a = b && c == "x && y";  // or', 'a = b || c == "x && y";  // or'),
    ("condition", 'if (name == "x") go();', 'if (!(name == "x")) go();'),
]

UNTOUCHED = [
    "// a < b",
    '"a < b"',
    "/* if (a < b) */",
    'log::warn("x", a < b);',
    "RW_ASSERT(a < b);",
    "static_assert(a < b);",
    'throw Error(Errc::kSystem, fmt::format("{}", a + 1));',
    "#if RW_CHECKS && NDEBUG",
    "#define RW_MORE(a) a + 1",
    "template <int kSize = 1>",
    "[[nodiscard]] int next(int hop = 1);",
    "std::vector<int> names;",
    "void put(int to, int from);",
    "constexpr std::size_t kBytes = 4'096;",
    "constexpr int kMeasured = 37;",
    "values.reserve(count);",
]


@pytest.mark.parametrize(("operator", "was", "now"), CHANGES)
def test_change(operator: str, was: str, now: str) -> None:
    assert Mutant("a.cc", 1, operator, was, now) in mutants_of("a.cc", was)


@pytest.mark.parametrize("line", UNTOUCHED)
def test_no_change(line: str) -> None:
    assert mutants_of("a.cc", f"{line}\n") == []


def test_text_that_ends_lines_later_is_no_code() -> None:
    text = 'throw Error(kind,\n            a + b);\nx = a + b;\nR"(x < y)" /* a\n < b */\n'
    assert {mutant.line for mutant in mutants_of("a.cc", text)} == {3}
    assert [len(line) for line in code_of(text).split("\n")] == [
        len(line) for line in text.split("\n")
    ]


def test_code_for_cuda_is_not_compiled_here() -> None:
    text = "#ifdef __CUDA_ARCH__\nx = a + b;\n#else\nx = a - b;\n#endif\n#if RW_CUDA\n++a;\n#endif"
    assert {mutant.line for mutant in mutants_of("a.cc", text)} == {4}


def test_drawn_by_seed_and_one_a_line() -> None:
    text = "\n".join(f"x{line} = a + {line % 10};" for line in range(40))
    found = mutants_of("a.cc", text)
    first = mutants.drawn(found, "1")
    assert first == mutants.drawn(found, "1") != mutants.drawn(found, "2")
    assert sorted(mutant.line for mutant in first) == list(range(1, 41))


@pytest.mark.parametrize(
    ("output", "pytest_output", "names"),
    [
        (
            "[ RUN      ] A.b\n[  FAILED  ] A.b (3 ms)\n"
            "[  FAILED  ] 1 test, listed below:\n[  FAILED  ] A.b\n",
            False,
            ["A.b"],
        ),
        ("[ RUN      ] A.b\n[       OK ] A.b (3 ms)\n[ RUN      ] A.c/0\n", False, ["A.c/0"]),
        ("cannot open shared object file", False, []),
        ("FAILED tests/python/a_test.py::t[x y] - E\n", True, ["tests/python/a_test.py::t[x y]"]),
        ("tests/a_test.py::t PASSED [ 50%]\ntests/a_test.py::u ", True, ["tests/a_test.py::u"]),
    ],
)
def test_which_test_failed(output: str, pytest_output: bool, names: list[str]) -> None:
    assert trial.failed_tests(output, pytest=pytest_output) == names


def test_every_layer_has_tests_that_are_there() -> None:
    folders = {path.name for path in (ROOT / "src").iterdir()} - {"simgrid"}
    assert set(mutants.TESTS) == folders
    for layer in mutants.TESTS:
        sources = mutants.sources_of(ROOT, layer)
        assert sources and not any("test" in source for source in sources)
        for step in mutants.steps_of(layer):
            if step.is_pytest:
                assert all((ROOT / name).is_file() for name in step.name.split())


def test_tests_beside_a_source_come_first() -> None:
    steps = mutants.beside(ROOT, "core", "src/core/copy_in_order.cc")
    assert [step.name for step in steps] == ["core_test"]
    assert "CopyInOrder.*" in steps[0].only


def test_explained_mutants_are_still_in_the_sources() -> None:
    for row in json.loads(mutants.EXPLAINED.read_text()):
        lines = [line.strip() for line in (ROOT / row["file"]).read_text().splitlines()]
        assert row["was"] in lines, row
        assert row["was"] != row["now"] and len(row["why"]) > 20


def test_report_counts_explained_survivors() -> None:
    def entry(line: int, state: str) -> mutants.Entry:
        mutant = Mutant("src/core/a.cc", line, "boundary", f"  x{line} < b;", f"  x{line} <= b;")
        return mutants.Entry("core", mutant, "", trial.Verdict(state, ran=["core_test"]))

    states = ["noticed", "noticed", "noticed", "survived", "survived", "refused", "same"]
    entries = [entry(line, state) for line, state in enumerate(states)]
    text = mutants.report(entries, {("src/core/a.cc", "x3 < b;", "x3 <= b;"): "never equal"})
    assert text.splitlines()[1].split() == ["core", *"711053213", "60%"]
    assert "3 of 5 noticed, 60%; without the 1 explained 3 of 4, 75%" in text
    assert "when tried first: 3 of 5 noticed, 60%" in text
    assert "survived: src/core/a.cc:3 (boundary)\n- x3 < b;\n+ x3 <= b;\n  ran: core_test" in text
    assert text.count("explained: never equal") == 1


def test_results_are_kept_by_seed_and_source(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    mutant = Mutant("src/core/a.cc", 3, "logic", "a && b;", "a || b;")
    entry = mutants.Entry("core", mutant, "digest", trial.Verdict("noticed", by="A.b"))
    mutants.Kept(file, 1, fresh=False).put(entry)
    again = mutants.Kept(file, 1, fresh=False)
    assert again.known("core", mutant, "digest") == entry
    assert again.known("core", mutant, "changed since") is None
    other = mutants.Entry("comm", mutant, "digest", trial.Verdict("survived"))
    again.put(other)
    noticed = mutants.Entry("comm", mutant, "digest", trial.Verdict("noticed"))
    again.put(noticed, other)
    assert mutants.Kept(file, 1, fresh=False).entries == [entry, noticed]
    assert [kept.first for kept in again.entries] == ["noticed", "survived"]
    assert mutants.Kept(file, 2, fresh=False).entries == []
    assert mutants.Kept(file, 1, fresh=True).entries == []


class NoticedNow(mutants.Trials):
    """Trials without a tree, in which tests now notice earlier survivors."""

    def __init__(self) -> None:
        self.prepared: list[str] = []

    def prepare(self, layer: str) -> None:
        self.prepared.append(layer)

    def digest(self, file: str) -> str:
        return f"digest of {file}"

    def text(self, file: str) -> str:
        return {"c.cc": "\n\n  a && b;\n", "d.cc": "a and b;\n"}[file]

    def entry_of(self, layer: str, mutant: Mutant) -> mutants.Entry:
        return mutants.Entry(layer, mutant, self.digest(mutant.file), trial.Verdict("noticed"))


def test_locations_are_tried_again(tmp_path: Path) -> None:
    trials = NoticedNow()
    kept = kept_survivors(tmp_path / "report.json")
    tried = mutants.once_more(trials, ["a.cc:4", "b.cc"], kept, {})
    assert [(entry.mutant.file, entry.mutant.line) for entry in tried] == [("a.cc", 4), ("b.cc", 3)]
    assert trials.prepared == ["core", "core"]
    assert states_of(kept) == ["survived", "noticed", "noticed", "survived", "survived", "noticed"]


def test_stale_results_are_tried_again_at_the_present_line(tmp_path: Path) -> None:
    kept = kept_survivors(tmp_path / "report.json")
    reasons = {("a.cc", "a && b;", "a || b;"): "never both"}
    mutants.once_more(NoticedNow(), [mutants.STALE], kept, reasons)
    # Explained; b.cc has a survivor; c.cc was changed, and d.cc has no such line any more.
    assert states_of(kept) == ["survived", "survived", "noticed", "noticed", "gone", "noticed"]
    assert kept.entries[3].mutant == Mutant("c.cc", 3, "logic", "  a && b;", "  a || b;")
    assert [entry.first for entry in kept.entries] == [*["survived"] * 5, "noticed"]
    text = (tmp_path / "report.txt").read_text()
    assert "3 of 5 noticed" in text and "when tried first: 1 of 6 noticed" in text
    assert "gone: d.cc:1 (logic)\n- a && b;\n+ a || b;\n" in text


def kept_survivors(file: Path) -> mutants.Kept:
    def entry(name: str, line: int, source: str, state: str = "survived") -> mutants.Entry:
        mutant = Mutant(name, line, "logic", "a && b;", "a || b;")
        return mutants.Entry("core", mutant, source, trial.Verdict(state))

    kept = mutants.Kept(file, 1, fresh=False)
    for name, line in [("a.cc", 3), ("a.cc", 4), ("b.cc", 3)]:
        kept.put(entry(name, line, f"digest of {name}"))
    for name in ("c.cc", "d.cc"):
        kept.put(entry(name, 1, "changed since"))
    kept.put(entry("e.cc", 1, "digest of e.cc", "noticed"))
    return mutants.Kept(file, 1, fresh=False)


def states_of(kept: mutants.Kept) -> list[str]:
    read = mutants.Kept(kept.file, kept.seed, fresh=False)
    assert read.entries == kept.entries
    return [entry.verdict.state for entry in read.entries]


PROJECT = """\
cmake_minimum_required(VERSION 3.22)
project(small CXX)
add_executable(core_test test.cc core.cc)
"""
CORE = """\
int sign(int x) {
  if (x < 0) return -1;
  return x == 0 ? 0 : 1;
}
int unused(int x) { return x + 2; }
int twice(int x) {
  int sum = 0;
  for (int i = 0; i < 2; ++i) sum += x;
  return sum;
}
int none(int x) { return x * 0 + 1; }
"""
# Speaks as gtest does.
TEST = """\
#include <cstdio>
#include <cstring>
#include <unistd.h>
int sign(int);
int twice(int);
static bool run(const char* name, bool (*test)(), const char* filter) {
  if (const char* without = std::strchr(filter + 2, '-'))
    if (std::strstr(without, name)) return true;
  std::printf("[ RUN      ] %s\\n", name);
  std::fflush(stdout);
  const bool good = test();
  std::printf("[%s] %s (1 ms)\\n", good ? "       OK " : "  FAILED  ", name);
  return good;
}
int main(int count, char** words) {
  if (fork() == 0) {  // what is left behind
    setsid();
    sleep(1000);
    return 0;
  }
  bool good = run("Core.Sign", [] { return sign(-5) == -1 && sign(3) == 1; }, words[count - 1]);
  good &= run("Core.Twice", [] { return twice(4) == 8; }, words[count - 1]);
  return run("Core.Broken", [] { return false; }, words[count - 1]) && good ? 0 : 1;
}
"""
TRIED = [
    ("  if (x < 0) return -1;", "  if (!(x < 0)) return -1;", "noticed", "Core.Sign"),
    ("  if (x < 0) return -1;", "  if (x <= 0) return -1;", "survived", ""),
    ("int unused(int x) { return x + 2; }", "int unused(int x) { return x + y; }", "refused", ""),
    ("int none(int x) { return x * 0 + 1; }", "int none(int x) { return x * 0 + 1 ; }", "same", ""),
    (
        "  for (int i = 0; i < 2; ++i) sum += x;",
        "  for (int volatile i = 0; i < 2;) sum = x;",
        "noticed",
        "Core.Twice (hangs)",
    ),
]


@pytest.mark.skipif(
    not all(map(shutil.which, ("cmake", "ninja", "git"))), reason="no cmake, ninja or git"
)
def test_small_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr("mutant_trial.SPARE_SECONDS", 3.0)
    source = tmp_path / "source"
    source.mkdir()
    for name, text in {"CMakeLists.txt": PROJECT, "core.cc": CORE, "test.cc": TEST}.items():
        (source / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=source, check=True)

    trial.adopt_orphans()
    request.addfinalizer(lambda: trial.adopt_orphans(False))
    tree = trial.Tree(source, tmp_path / "tree", Path(sys.executable))
    tree.sync()
    tree.configure([])
    assert tree.build([], 2, keep=True).returncode == 0
    unchanged = tree.objects()
    step = trial.Step("core_test")
    baseline = trial.baseline_of(tree, step)
    assert baseline.failing == ["Core.Broken"]
    for was, now, state, by in TRIED:
        line = CORE.split("\n").index(was) + 1
        mutant = Mutant("core.cc", line, "", was, now)
        verdict = trial.tried(tree, mutant, [step], {step.name: baseline}, unchanged, 2)
        assert (verdict.state, verdict.by) == (state, by), now
        assert (tree.root / "core.cc").read_text() == CORE
        assert tree.objects() == unchanged
    assert (source / "core.cc").read_text() == CORE
    assert baseline == trial.Baseline(baseline.longest, ["Core.Broken"], baseline.tests)
    assert subprocess.run(["pgrep", "-f", f"^{tree.build_folder}"]).returncode == 1
