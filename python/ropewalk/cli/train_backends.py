"""What `ropewalk train --backend` names: a backend of PyTorch, and its environment."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ropewalk import _library
from ropewalk.cli import console

NONE: Final = "none"
ONE_RANK: Final = "one rank"
_PLUGIN: Final = "nccl+plugin"
_NAMES: Final = ("ropewalk", "nccl", _PLUGIN, "gloo")
_PLUGIN_FILE: Final = "libnccl-net-ropewalk.so"


@dataclass(frozen=True)
class Backend:
    """One of the networks that are compared."""

    label: str
    """as given on the command line"""
    torch_name: str
    environment: dict[str, str] = field(default_factory=dict)
    """what its processes have besides"""


def one_rank() -> Backend:
    """Rank 0 computes, and the others do not run."""
    return Backend(ONE_RANK, NONE)


def baseline() -> Backend:
    """The ranks compute, and do not communicate."""
    return Backend(NONE, NONE)


def parse(text: str, device: str) -> list[Backend]:
    """From "ropewalk:NET=tcp,nccl,gloo"; ends the command when one cannot be."""
    given = [each.strip() for each in text.split(",")]
    for each in given:
        if given.count(each) > 1:
            console.fail(f'--backend: "{each}" is named twice', console.USAGE)
    return [_parse_one(each, device) for each in given]


def _parse_one(label: str, device: str) -> Backend:
    name, *settings = label.split(":")
    if name not in _NAMES:
        console.fail(f'--backend "{name}" is none of {", ".join(_NAMES)}', console.USAGE)
    if name.startswith("nccl") and device == "cpu":
        console.fail(f"--backend {name}: NCCL works on GPUs only; add --device cuda", console.USAGE)
    environment: dict[str, str] = {}
    if name == _PLUGIN:
        # The file's path, so that it is found; the network's name, so that no other is taken.
        environment |= {"NCCL_NET_PLUGIN": str(_plugin()), "NCCL_NET": "Ropewalk"}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key or name in ("gloo", "nccl"):
            console.fail(
                f'--backend "{label}": settings are Ropewalk\'s, as in ropewalk:NET=tcp',
                console.USAGE,
            )
        environment["ROPEWALK_" + key.upper().removeprefix("ROPEWALK_")] = value
    return Backend(label, name.split("+")[0], environment)


def _plugin() -> Path:
    folder = Path(_library.path()).resolve().parent
    places = (folder / _PLUGIN_FILE, folder / "ropewalk" / _PLUGIN_FILE)
    found = next((place for place in places if place.exists()), None)
    if found is None:
        console.fail(f"--backend {_PLUGIN}: {places[0]} is not there", console.USAGE)
    return found
