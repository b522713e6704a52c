"""Names in src/ use the field's words: no `place` or `way` for an index, slot, address or path."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent

# All folders of src/.
FOLDERS = tuple(sorted(path.name for path in (ROOT / "src").iterdir() if path.is_dir()))
VAGUE = {"place", "places", "way", "ways"}
# Standard terms: in place, one-way, under way; `place` as a verb, for ranks, NICs and demands (the
# C API's rwTopologyPlace places the ranks of a host).
TERMS = re.compile(r"(in|out_of)_place|in_?place|one_?way|both_?ways|each_?way|under_?way", re.I)
VERBS = {
    *("place", "place_by_cores", "place_nics", "place_ranks", "place_rest", "place_at_least_load"),
    "rwTopologyPlace",
}
# Riddles that have a plain word, in code, comments and documents.
RIDDLES = {
    "manieth": "every Nth",
    "in vain": "cannot stall",
    "is no business of": "is meaningless to",
    "Neighbourhood": "HostInfo",
    "Farewell": "Goodbye handshake",
}


def names_of(text: str) -> set[str]:
    """The identifiers of C++ text, without comments, strings and includes."""
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(r'"(?:\\.|[^"\\\n])*"', '""', text)
    text = re.sub(r"#include[^\n]*", "", text)
    return set(re.findall(r"[A-Za-z_]\w*", text))


def is_vague(name: str) -> bool:
    """Whether a part of the name is a vague word that is no part of a standard term."""
    rest = TERMS.sub("_", name)
    parts = {part.lower() for part in re.findall(r"[A-Z]?[a-z]+", rest)}
    return bool(parts & VAGUE) and name not in VERBS


def sources(folder: Path) -> list[Path]:
    """The C++ and CUDA files below a folder."""
    return sorted(p for p in folder.rglob("*") if p.suffix in {".cc", ".h", ".cu", ".cuh"})


@pytest.mark.parametrize("folder", FOLDERS)
def test_names_say_what_they_are(folder: str) -> None:
    found = {
        str(path.relative_to(ROOT)): vague
        for path in sources(ROOT / "src" / folder)
        if (vague := {name for name in names_of(path.read_text()) if is_vague(name)})
    }
    assert not found, "say index, slot, address, location or path instead"


@pytest.mark.parametrize(("riddle", "plain"), RIDDLES.items())
def test_riddles_do_not_come_back(riddle: str, plain: str) -> None:
    texts = [*sources(ROOT / "src"), *sources(ROOT / "include"), *(ROOT / "docs").rglob("*.md")]
    texts += [*(ROOT / "python").rglob("*.py")]
    found = [
        str(path.relative_to(ROOT))
        for path in texts
        if re.search(rf"\b{re.escape(riddle)}\b", path.read_text())
    ]
    assert not found, f"say: {plain}"


# Calls that check what CUDA's runtime or driver returned; the last argument is for the message.
CHECKS = re.compile(r"\b(?:check_cuda|cuda_?(?:\(\))?(?:\.|->)(?:check|warn)|launch)\(")
FUNCTION = re.compile(r"cu(da)?[A-Z]\w+|kernel launch")


def last_argument(text: str) -> str:
    """Of a call whose arguments begin here."""
    text = text[: text.index(";")]
    depth, begin, quoted = 0, 0, False
    for i, character in enumerate(text):
        if character == '"' and text[i - 1] != "\\":
            quoted = not quoted
        elif quoted:
            continue
        elif character == "," and depth == 0:
            begin = i + 1
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        if depth < 0:
            return text[begin:i].strip()
    return ""


def messages(text: str) -> list[str]:
    """What calls that check CUDA's results say, their own alone: no parameters passed on."""
    last = [last_argument(text[call.end() :]) for call in CHECKS.finditer(text)]
    constants = dict(re.findall(r'const char\* const (\w+) = ("[^"]*");', text))
    last = [constants.get(each, each) for each in last]
    return [words for each in last for words in re.findall(r'"([^"]*)"', each)]


@pytest.mark.parametrize(
    ("folder", "least"),
    [("link/cuda", 10), ("executor/cuda", 10), ("comm", 30), ("diagnose", 30), ("message", 30)],
)
def test_cuda_errors_name_the_function(folder: str, least: int) -> None:
    tested = [path for path in sources(ROOT / "src" / folder) if "_test." not in path.name]
    said = [(path.name, words) for path in tested for words in messages(path.read_text())]
    assert len(said) > least, said
    assert not [each for each in said if not FUNCTION.match(each[1])]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ('check_cuda(cudaFree(p), "cudaFree");', ["cudaFree"]),
        ('executor::check_cuda(cudaGet(&a[1], f(2)),\n   "copying (a, b)");', ["copying (a, b)"]),
        ('gpu.cuda().check(made, on ? "cuMemMap" : "changing");', ["cuMemMap", "changing"]),
        ('cuda_.check(done, fmt::format("trying {}", n).c_str());', ["trying {}"]),
        ('launch(gpu, kernel, {1, 1}, call, "a batch");', ["a batch"]),
        ('check_cuda(f("x"), tried);', []),
        ('const char* const what = "trying";\ncheck_cuda(f(), what);', ["trying"]),
    ],
)
def test_the_check_finds_what_is_said(call: str, said: list[str]) -> None:
    assert messages(call) == said


@pytest.mark.parametrize(
    ("name", "vague"),
    [
        *[("place", False), ("in_place_", False), ("address_out_of_place", False)],
        *[("kHybridOneWayRate", False), ("place_nics", False), ("always", False)],
        *[("PlacementOfRanks", False), ("kUnderWay", False)],
        *[("places_", True), ("place_of", True), ("OutputPlace", True), ("kNoWay", True)],
        *[("trial_way_", True), ("in_place_of_ways", True)],
    ],
)
def test_the_check_knows_terms_from_vague_names(name: str, vague: bool) -> None:
    assert is_vague(name) == vague
