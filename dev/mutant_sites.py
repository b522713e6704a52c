"""Small, plausible mistakes in C++ sources, of one line each, found by the line's text.

Only code is changed: no comment, string, message, assertion or preprocessor line. The patterns rely
on clang-format: binary operators have spaces around them, template brackets have none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Callable


@dataclass(frozen=True)
class Mutant:
    """One changed line."""

    file: str  # from the root of the tree
    line: int  # from 1
    operator: str
    was: str
    now: str


@dataclass(frozen=True)
class Edit:
    """What stands at [begin, end) of a line is replaced."""

    begin: int
    end: int
    text: str


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


_NOT_CODE = re.compile(
    r"//[^\n]*"
    r"|/\*.*?\*/"
    r'|R"(?P<mark>[^()\s\\]*)\(.*?\)(?P=mark)"'
    r'|"(?:\\.|[^"\\\n])*"'
    r"|\b[0-9][0-9a-zA-Z.']*"  # numbers, whose quotes separate digits
    r"|'(?:\\.|[^'\\\n])+'",
    re.DOTALL,
)
# What only words and aborts depend on, as far as its closing parenthesis or the statement's end.
_WORDS = re.compile(
    r"\b(?:RW_ASSERT|static_assert|assert|log|(?:log::)?(?:error|warn|warn_once|info|debug|trace)"
    r"|describe\w*|(?:fmt::)?(?:format|format_to|print|println))(?=\()"
    r"|\bthrow\b|\b__attribute__(?=\()"
)
_CONDITION = re.compile(r"\s*#\s*(ifdef|ifndef|if|elif|else|endif)\b(.*)")
# Such a change would not compile, or would change text for readers only.
_DECLARATION = re.compile(
    r"\s*(?:template\b|using\b|typedef\b|namespace\b|friend\b|static_assert\b|extern\b|public:"
    r"|private:|protected:|requires\b|\[\[nodiscard\]\]|class\b|struct\b|enum\b)"
)


def closing(text: str, opening: int) -> int:
    """The index of the bracket that closes the one at `opening`; -1 where there is none."""
    depth = 0
    for index in range(opening, len(text)):
        if text[index] in "([{":
            depth += 1
        elif text[index] in ")]}":
            depth -= 1
            if depth == 0:
                return index
    return -1


def code_of(text: str) -> str:
    """`text` with everything but code replaced by spaces, so that offsets stay the same."""

    def blanked(found: re.Match[str]) -> str:
        return found[0] if found[0][0].isdigit() else _blank(found[0])

    text = _NOT_CODE.sub(blanked, text)
    text = _without_preprocessor(text)
    for found in reversed(list(_WORDS.finditer(text))):
        thrown = found[0] == "throw"
        end = text.find(";", found.end()) if thrown else closing(text, found.end())
        if end >= 0:
            text = text[: found.start()] + _blank(text[found.start() : end]) + text[end:]
    return text


def _without_preprocessor(text: str) -> str:
    """Without directives, definitions of macros, and code for CUDA only."""
    lines = text.split("\n")
    hidden: list[bool] = []  # for each open #if: is this branch for CUDA?
    continued = False
    for index, line in enumerate(lines):
        directive = continued or line.lstrip().startswith("#")
        found = _CONDITION.match(line)
        if found and not continued:
            kind, what = found.groups()
            cuda = "CUDA" in what
            if kind == "endif":
                hidden = hidden[:-1]
            elif kind == "else":
                hidden[-1:] = [False]
            elif kind == "elif":
                hidden[-1:] = [cuda]
            else:
                hidden.append(cuda and kind != "ifndef")
        continued = directive and line.endswith("\\")
        if directive or any(hidden):
            lines[index] = _blank(line)
    return "\n".join(lines)


def _swap(*pairs: tuple[str, str]) -> Callable[[str], Iterator[Edit]]:
    """Each pattern is replaced wherever it is found; group 1, where there is one, alone."""

    def edits(line: str) -> Iterator[Edit]:
        for pattern, text in pairs:
            for found in re.finditer(pattern, line):
                group = 1 if found.re.groups else 0
                yield Edit(found.start(group), found.end(group), text)

    return edits


def _condition(line: str) -> Iterator[Edit]:
    """The opposite of x in if (x), where x declares nothing and ends on the line."""
    for found in re.finditer(r"\b(?:if|while) \(", line):
        end = closing(line, found.end() - 1)
        inner = line[found.end() : end]
        if end > 0 and inner.strip() and ";" not in inner and not re.search(r"[^=!<>]=[^=]", inner):
            yield Edit(found.end(), end, f"!({inner})")


def _number(line: str) -> Iterator[Edit]:
    """A digit to the next number, and to the one before.

    Larger numbers are sizes and measured values, of which one more is as good.
    """
    for found in re.finditer(r"(?<![\w.'])(?<!e-)(\d)(?=[uUlLzZ]{0,3}\b)(?![\w]*['.x])", line):
        value = int(found[1])
        yield Edit(found.start(1), found.end(1), str(value + 1))
        if value > 0:
            yield Edit(found.start(1), found.end(1), str(value - 1))


# Their absence changes how long something takes, not its result.
_ONLY_FASTER = re.compile(
    r"\b(?:reserve|shrink_to_fit|prefetch|pause|yield|relax|sleep_for|set_name|madvise"
    r"|__builtin_\w+)\("
)
_CALLEE = r"[\w:.*&\[\]>-]+(?:\(\)[\w:.\[\]>-]*)*"
_CALL = re.compile(rf"(?P<lead>\s*)(?!return\b|throw\b|delete\b|co_\w+\b){_CALLEE}\(")
_ASSIGNMENT = re.compile(
    r"(?P<lead>\s*)[\w.*\[\]>-]+(?:\(\)[\w.\[\]>-]*)* (?:[-+*/%|&^]|<<|>>)?= [^;]+;\s*$"
    r"|(?P<step>\s*)(?:\+\+|--)[\w.\[\]>-]+;\s*$"
)
_IF = re.compile(r"\s*(?:(?:\} )?else )?(?:if|for|while) \(|\s*else(?= )")


def _statement(line: str) -> Iterator[Edit]:
    """A call or an assignment that is a whole statement is left out."""
    begin = 0
    control = _IF.match(line)
    if control:
        begin = control.end() if control[0].endswith("e") else closing(line, control.end() - 1) + 1
        if begin <= 0:
            return
    rest = line[begin:]
    whole = rest.rstrip().endswith(";") and all(
        rest.count(bracket) == rest.count(other) for bracket, other in ("()", "[]", "{}")
    )
    if not whole or _ONLY_FASTER.search(rest):
        return
    found = _ASSIGNMENT.match(rest)
    if found is None:
        found = _CALL.match(rest)
        if found is None or rest[closing(rest, found.end() - 1) + 1 :].strip() != ";":
            return
    start = begin + len(rest) - len(rest.lstrip())
    yield Edit(start, len(line.rstrip()), "(void)0;")


def _default(line: str) -> Iterator[Edit]:
    """The returned value becomes the type's default value."""
    found = re.search(r"\breturn ([^;]+);\s*$", line)
    if found and found[1].strip() not in ("{}", "nullptr", "0", "false", "true", "std::nullopt"):
        yield Edit(found.start(1), found.end(1), "{}")


def _arguments(line: str, opening: int) -> list[tuple[int, int]]:
    """The offsets of the arguments in the brackets that open at `opening`."""
    end = closing(line, opening)
    if end < 0:
        return []
    places = []
    start, depth, angle = opening + 1, 0, 0
    for index in range(opening + 1, end + 1):
        letter = line[index]
        depth += (letter in "([{") - (letter in ")]}" and index < end)
        angle += (letter == "<" and line[index - 1] != " ") - (letter == ">" and angle > 0)
        if index == end or (letter == "," and depth == 0 and angle == 0):
            place = start + len(line[start:index]) - len(line[start:index].lstrip())
            places.append((place, index))
            start = index + 1
    return [place for place in places if place[0] < place[1]]


def _left_out(line: str) -> Iterator[Edit]:
    """An argument of a key (tie, tuple, pair, braces) is no part of it."""
    ties = [found.end() - 1 for found in re.finditer(r"\b(?:tie|make_tuple|make_pair)\(", line)]
    lists = [_arguments(line, opening) for opening in ties]
    if lists and len({len(places) for places in lists}) == 1 and len(lists[0]) > 1:
        for left in range(len(lists[0])):
            text = line
            for places in reversed(lists):
                begin = places[left][0] if left == 0 else places[left - 1][1]
                end = places[left + 1][0] if left == 0 else places[left][1]
                text = text[:begin] + text[end:]
            yield Edit(0, len(line), text)
    for found in re.finditer(r"(?:\w|[=(] ?|return )\{(?=[^{}]*,)", line):
        for begin, end in _arguments(line, found.end() - 1):
            if not line[begin:end].startswith("."):
                yield Edit(begin, end, "{}")


def _exchanged(line: str) -> Iterator[Edit]:
    """Exchanges two adjacent arguments; not parameters, which have types."""
    for found in re.finditer(r"\w\(", line):
        places = _arguments(line, found.end() - 1)
        for (begin, end), (other, last) in zip(places, places[1:]):
            first, second = line[begin:end], line[other:last]
            if not re.search(r"[ =]", first + second) and first != second:
                yield Edit(begin, last, f"{second}, {first}")


OPERATORS: dict[str, Callable[[str], Iterator[Edit]]] = {
    "boundary": _swap((r" < ", " <= "), (r" <= ", " < "), (r" > ", " >= "), (r" >= ", " > ")),
    "equality": _swap((r" == ", " != "), (r" != ", " == ")),
    "logic": _swap((r" && ", " || "), (r" \|\| ", " && ")),
    "condition": _condition,
    "negation": _swap((r"(?<!\w)(!)(?=[\w(])", "")),
    "arithmetic": _swap(
        (r" \+ ", " - "), (r" - ", " + "), (r" \* ", " / "), (r" / ", " * "), (r" % ", " / ")
    ),
    "off by one": _swap((r"(?<=[\w)\]])( [-+] 1)\b(?!['.])", "")),
    "bits": _swap((r" & ", " | "), (r" \| ", " & "), (r"\w( << )\w", " >> ")),
    "assignment": _swap(
        (r" (\+=|\|=|&=|\^=) ", "="), (r" (\+=) ", "-="), (r" (-=) ", "+="), (r" (\*=) ", "=")
    ),
    "number": _number,
    "truth": _swap((r"\btrue\b", "false"), (r"\bfalse\b", "true")),
    "extreme": _swap(
        (r"\bstd::(min)\b(?!_)", "max"),
        (r"\bstd::(max)\b(?!_)", "min"),
        (r"\.(front)\(\)", "back"),
        (r"\.(back)\(\)", "front"),
    ),
    "order": _swap((r"\bmemory_order_(release|acquire|acq_rel|seq_cst)\b", "relaxed")),
    "unit": _swap(
        (r"\b(microseconds)\b", "milliseconds"),
        (r"\b(milliseconds)\b", "microseconds"),
        (r"\bchrono::(seconds)\b", "milliseconds"),
    ),
    "statement": _statement,
    "result": _default,
    "key": _left_out,
    "exchange": _exchanged,
}


def mutants_of(file: str, text: str) -> list[Mutant]:
    """All mutants of a source, those of a line side by side."""
    found: dict[Mutant, None] = {}
    lines = text.split("\n")
    for number, (line, code) in enumerate(zip(lines, code_of(text).split("\n")), 1):
        if not code.strip() or _DECLARATION.match(code):
            continue
        for operator, edits in OPERATORS.items():
            for edit in edits(code):
                # Of an edit of the whole line, strings and comments are lost: it is none then.
                if edit.begin == 0 and edit.end == len(code) and code != line:
                    continue
                replaced = code[edit.begin : edit.end]
                original = line[edit.begin : edit.end]
                new = edit.text
                if replaced and replaced in new:
                    new = new.replace(replaced, original)
                now = line[: edit.begin] + new + line[edit.end :]
                if now != line:
                    found[Mutant(file, number, operator, line, now)] = None
    return list(found)
