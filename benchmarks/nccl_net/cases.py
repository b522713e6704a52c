"""What a sweep compares: named sets of settings."""

from __future__ import annotations

import itertools
from dataclasses import dataclass


class CaseError(Exception):
    """A case that cannot be read."""


@dataclass(frozen=True)
class Case:
    name: str
    settings: tuple[tuple[str, str], ...]

    def environment(self) -> dict[str, str]:
        """Ropewalk's settings get its prefix; those of other libraries stay as they are."""
        return {environment_name(name): value for name, value in self.settings}


_OTHERS = ("ROPEWALK_", "NCCL_", "FI_", "UCX_", "CUDA_", "HFI_", "PSM2_MQ_")


def environment_name(setting: str) -> str:
    return setting if setting.startswith(_OTHERS) else f"ROPEWALK_{setting}"


def setting(word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not equals or not name.replace("_", "").isalnum() or name != name.upper():
        raise CaseError(f"{word}: not NAME=VALUE")
    return name, value


def named(text: str) -> Case:
    """LABEL: NAME=VALUE NAME=VALUE ..."""
    label, colon, rest = text.partition(":")
    if not colon or not label.strip():
        raise CaseError(f"{text}: not LABEL: NAME=VALUE ...")
    return Case(label.strip(), tuple(setting(word) for word in rest.split()))


def product(varied: list[str]) -> list[Case]:
    """All combinations of NAME=VALUE|VALUE...; the first has the first value of each."""
    axes = []
    for word in varied:
        name, values = setting(word)
        axes.append([(name, value) for value in values.split("|")])
    return [
        Case(" ".join(f"{name}={value}" for name, value in chosen), chosen)
        for chosen in itertools.product(*axes)
    ]


def all_cases(varied: list[str], given: list[str]) -> list[Case]:
    """Named cases first, then the combinations. The others are compared with the first."""
    cases = [named(text) for text in given]
    if varied or not cases:
        cases += product(varied) if varied else [Case("as it is", ())]
    names = [case.name for case in cases]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise CaseError(f"{', '.join(sorted(twice))}: named twice")
    return cases
