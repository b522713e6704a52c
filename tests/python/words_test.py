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


@pytest.mark.parametrize("folder", ["link/cuda", "executor/cuda"])
def test_cuda_errors_name_the_function(folder: str) -> None:
    said = [
        words
        for path in sources(ROOT / "src" / folder)
        for words in re.findall(r'check_cuda\([^;"]*"([^"]+)"\s*\);', path.read_text())
    ]
    assert len(said) > 5
    assert not [words for words in said if not re.match(r"cuda[A-Z]|kernel launch", words)]


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
