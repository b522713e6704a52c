"""Tests that `make test TESTS=all` runs, as CI calls it, and `make test` by itself leaves out.

A test is marked `@pytest.mark.thorough` where it takes longer than a change to most of the code is
worth, and other tests run the same code in a simpler case.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def thorough_but(values: Iterable[Any], *kept: Any) -> list[Any]:
    """Parameters for parametrize(): the tests of all but `kept` are thorough."""
    rest = list(values)
    missing = [value for value in kept if value not in rest]
    assert not missing, f"not among the values: {missing}"
    made = []
    for value in rest:
        arguments = value if isinstance(value, tuple) else (value,)
        marks = [] if value in kept else [pytest.mark.thorough]
        made.append(pytest.param(*arguments, marks=marks))
    return made
