"""The tests of PyTorch that pass with Gloo, as parameters and with the process that runs them."""

from __future__ import annotations

from collections.abc import Generator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Callable

import pytest
from suite import PASSED, Server


def names(ranks: int) -> list[str]:
    """What Gloo passes; nothing, and a skip, where this is not the PyTorch of the list."""
    lines = (Path(__file__).parent / f"gloo_{ranks}_ranks.txt").read_text().splitlines()
    # Without importing them: every process of pytest reads this file, and PyTorch takes a second.
    for package in ("torch", "expecttest"):  # PyTorch's tests import the latter
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed", allow_module_level=True)
    version = lines[0].split()[2].rstrip(":")
    if metadata.version("torch").partition("+")[0] != version:
        pytest.skip(f"the list is for PyTorch {version}", allow_module_level=True)
    return lines[1:]


def server(ranks: int) -> Any:
    """A fixture of one server for the tests of a module."""

    @pytest.fixture(scope="module")
    def made() -> Generator[Callable[[str], None]]:
        process = Server("ropewalk", ranks)

        def check(name: str) -> None:
            answer = process.run(name)
            assert answer["outcome"] == PASSED, answer["said"]

        yield check
        process.close()

    return made
