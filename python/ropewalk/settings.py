"""The table of ROPEWALK_* settings, where their values come from, and the tuner's constants."""

from __future__ import annotations

from typing import Any

from ropewalk._library import check, json_of, library
from ropewalk.arguments import integer, text


def set(name: str, value: object, *, source: str = "API") -> None:
    """Sets `name` for communicators made from now on, over environment and file.

    Raises:
        ArgumentError: an unknown name or a malformed value; the text names the setting.
    """
    check(
        library().rwSettingSet(
            text(name, "name"), text(str(value), "value"), text(source, "source")
        )
    )


def describe() -> list[dict[str, Any]]:
    """All settings: name, type, default, allowed, help, value, source."""
    rows: list[dict[str, Any]] = json_of(library().rwSettingsDescribe)
    return rows


def tuning(ranks: int = 2, *, measure: bool = False) -> dict[str, Any]:
    """The cost model's constants of this machine and its choices for `ranks` ranks.

    Args:
        ranks: number of ranks that the choices are for.
        measure: measures the constants when they are not yet known (takes seconds).
    """
    found: dict[str, Any] = json_of(
        library().rwTuningDescribe, integer(ranks, "ranks"), int(bool(measure))
    )
    return found
