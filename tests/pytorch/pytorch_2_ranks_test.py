"""PyTorch's own tests with 2 ranks: what passes with Gloo passes with Ropewalk."""

from __future__ import annotations

from typing import Callable

import pytest
from gloo_lists import names, server

check = server(2)


@pytest.mark.parametrize("name", names(2))
def test_as_gloo(check: Callable[[str], None], name: str) -> None:
    check(name)
