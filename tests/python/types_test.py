"""Scalars are packed as the element types lie in memory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ropewalk.types import DATA_TYPES, pack


@given(value=st.floats(-400, 400))
@pytest.mark.parametrize(
    ("name", "foreign"),
    [("bfloat16", "bfloat16"), ("float8e4m3", "float8_e4m3fn"), ("float8e5m2", "float8_e5m2")],
)
def test_small_floats_round_to_nearest_even(name: str, foreign: str, value: float) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    # Through float32, as everything that calls the library does.
    wanted = np.array([np.float32(value)]).astype(getattr(ml_dtypes, foreign))
    packed = pack(float(np.float32(value)), DATA_TYPES[name])
    assert np.frombuffer(packed, wanted.dtype).astype(np.float32)[0] == wanted.astype(np.float32)[0]


@pytest.mark.parametrize("name", ["int8", "uint64", "float16", "float32", "float64"])
def test_numbers(name: str) -> None:
    assert np.frombuffer(pack(5, DATA_TYPES[name]), name).tolist() == [5]


def test_a_value_that_the_type_cannot_hold() -> None:
    with pytest.raises(OverflowError):
        pack(1e6, DATA_TYPES["float8e4m3"])
