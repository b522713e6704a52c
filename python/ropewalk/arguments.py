"""Arguments that are numbers and texts: as the C API takes them, or refused in words.

ctypes would refuse them in words of its own, or cut them to the bits that fit.
"""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Sequence
from typing import Any, Final, Optional

from ropewalk.errors import ArgumentError

MOST: Final = 2**31 - 1
"""of a C int"""


def _shown(value: object) -> str:
    return f"{reprlib.repr(value)}, a {type(value).__name__}"


def integer(value: Any, name: str, low: int = -MOST - 1, high: int = MOST) -> int:
    """`value`, which may be of any type that is an integer (`__index__`), but no bool.

    Raises:
        ArgumentError: it is none, or not from `low` to `high`.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise ArgumentError(f"{name} is {_shown(value)}; it must be an integer") from None
    if low <= number <= high:
        return number
    if number < low and high == MOST and low in (0, 1):
        raise ArgumentError(f"{name} {number} is {'not positive' if low else 'negative'}")
    raise ArgumentError(f"{name} {number} is outside {low} to {high}")


def integers(values: Any, name: str, low: int = -MOST - 1) -> list[int]:
    """Each as `integer`."""
    if not isinstance(values, Sequence) and not hasattr(values, "__iter__"):
        raise ArgumentError(f"{name} is {_shown(values)}; it must be a list of integers")
    return [integer(value, f"{name}[{i}]", low) for i, value in enumerate(values)]


def text(value: Any, name: str) -> bytes:
    """The UTF-8 of a str.

    Raises:
        ArgumentError: it is none, or cannot be a text of C.
    """
    if not isinstance(value, str):
        raise ArgumentError(f"{name} is {_shown(value)}; it must be a str")
    if "\0" in value:
        raise ArgumentError(f"{name} has a zero byte at {value.index(chr(0))}")
    try:
        return value.encode()
    except UnicodeEncodeError as reason:
        raise ArgumentError(f"{name} is no text: {reason}") from None


def text_or_none(value: Any, name: str) -> Optional[bytes]:
    """As `text`; None stays."""
    return None if value is None else text(value, name)


def a(kind: type, value: Any, name: str) -> Any:
    """`value`, which must be a `kind`."""
    if not isinstance(value, kind):
        raise ArgumentError(f"{name} is {_shown(value)}; it must be a {kind.__name__}")
    return value
