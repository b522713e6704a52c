"""Sources compiled as one (`rw_unity`, cmake/precompiled.cmake) share one unnamed namespace.

A constant or type that one of them declares there hides, for the unnamed namespaces of all others,
what a header declares under the same name in the namespace around it, and the compiler says
nothing. So no such name may be one that a header of that namespace, or of one around it, declares.
(Functions are left out: a call that finds the wrong ones rarely compiles.)
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOT_COMPILED_AS_ONE = ("_fuzz.cc",)

COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
STRING = re.compile(r'R"\(.*?\)"|"(?:\\.|[^"\\\n])*"', re.DOTALL)
CONSTANT = re.compile(
    r"^\s*(?:inline |constexpr |static |const |extern )+[^=({;]*?\b(\w+)\s*(?:\[[^\]]*\]\s*)*[={;]",
    re.MULTILINE,
)
TYPE = re.compile(
    r"^\s*(?:class|struct|enum class|using)\s+(?:alignas\([^)]*\)\s*)?(\w+)\b", re.MULTILINE
)


def scopes(text: str) -> dict[str, str]:
    """What stands directly in each namespace, by its name; `(unnamed)` where there is none."""
    text = STRING.sub('""', COMMENT.sub("", text))
    text = re.sub(r"^\s*#.*(?:\\\n.*)*$", "", text, flags=re.MULTILINE)
    found: dict[str, list[str]] = defaultdict(list)
    stack: list[str | None] = []  # of a brace: the namespace that it opens, or None
    begin = 0
    for match in re.finditer(r"(?:inline\s+)?namespace\s*([\w:]*)\s*\{|[{}]", text):
        inside = [name for name in stack if name is not None]
        if None not in stack:
            found["::".join(inside)].append(text[begin : match.end()])
        if match[0] == "}":
            if stack:
                stack.pop()
        else:
            stack.append((match[1] or "(unnamed)") if "namespace" in match[0] else None)
        begin = match.end()
    return {name: "".join(parts) for name, parts in found.items()}


def names_in(text: str) -> set[str]:
    return {*CONSTANT.findall(text), *TYPE.findall(text)}


def declared_by_headers() -> dict[str, dict[str, str]]:
    declared: dict[str, dict[str, str]] = defaultdict(dict)
    for header in sorted([*ROOT.glob("src/**/*.h"), *ROOT.glob("include/**/*.h")]):
        for namespace, text in scopes(header.read_text()).items():
            for name in names_in(text):
                declared[namespace][name] = str(header.relative_to(ROOT))
    return declared


def hidden(namespace: str, text: str, declared: dict[str, dict[str, str]]) -> dict[str, str]:
    """The names of an unnamed namespace that a header declares around it, and the header."""
    around = namespace.removesuffix("::(unnamed)").split("::")
    return {
        name: declared[outer][name]
        for name in sorted(names_in(text))
        for outer in ("::".join(around[:n]) for n in range(1, len(around) + 1))
        if name in declared[outer]
    }


def test_unnamed_namespaces_hide_nothing() -> None:
    declared = declared_by_headers()
    assert {"kLl", "FifoShape", "kInlineBytes"} & declared["ropewalk::executor"].keys()
    sources = 0
    found = []
    for source in sorted([*ROOT.glob("src/**/*.cc"), *ROOT.glob("tests/netplugin/*.cc")]):
        if source.name.endswith(NOT_COMPILED_AS_ONE):
            continue
        for namespace, text in scopes(source.read_text()).items():
            if not namespace.endswith("::(unnamed)"):
                continue
            sources += 1
            for name, header in hidden(namespace, text, declared).items():
                found.append(f"{source.relative_to(ROOT)}: {name}, of {header}")
    assert sources > 200
    assert not found, "\n".join(found)


def test_what_hides_is_found() -> None:
    header = """
namespace ropewalk::message {
inline constexpr std::size_t kMarkBytes = 64;  // "in words }"
struct Mark {
  int kInside = 0;
};
Mark mark_of(int rank);
}  // namespace ropewalk::message
"""
    source = """
namespace ropewalk::message {
namespace {
constexpr std::size_t kMarkBytes = 8;
constexpr int kInside = 1;
Mark mark_of(int rank) { return {}; }
struct Mark { int a; };
}  // namespace
}  // namespace ropewalk::message
"""
    declared: dict[str, dict[str, str]] = defaultdict(dict)
    for namespace, text in scopes(header).items():
        for name in names_in(text):
            declared[namespace][name] = "a.h"
    text = scopes(source)["ropewalk::message::(unnamed)"]
    assert set(hidden("ropewalk::message::(unnamed)", text, declared)) == {
        "kMarkBytes",
        "Mark",
    }


def test_what_is_compiled_alone_is_there() -> None:
    rules = (ROOT / "cmake" / "precompiled.cmake").read_text()
    (alone,) = re.findall(r'set\(alone "src/\((.*?)\)', rules)
    for name in alone.split("|"):
        assert (ROOT / "src" / f"{name}.cc").exists(), name
