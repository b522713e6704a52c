"""The results of every collective, in NumPy, on inputs whose sum does not depend on the order."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

try:
    import ml_dtypes

    SMALL_FLOATS: dict[str, Any] = {
        "bfloat16": ml_dtypes.bfloat16,
        "float8e4m3": ml_dtypes.float8_e4m3fn,
        "float8e5m2": ml_dtypes.float8_e5m2,
    }
except ImportError:
    SMALL_FLOATS = {}

TYPES: dict[str, Any] = {
    name: np.dtype(name)
    for name in (
        "int8",
        "uint8",
        "int32",
        "uint32",
        "int64",
        "uint64",
        "float16",
        "float32",
        "float64",
    )
} | {name: np.dtype(kind) for name, kind in SMALL_FLOATS.items()}
OPERATORS = ("sum", "prod", "max", "min", "avg")


def inputs(ranks: int, count: int, dtype: Any, op: str, seed: int) -> list[Array]:
    """One array per rank: small integers, so that every partial result is exact.

    Float8 holds integers up to 8 (e5m2) exactly, and nine ranks add up: 0 and 1 for sums, products
    of 1 and 2 with at most two 2s.
    """
    generator = np.random.default_rng(seed)
    narrow = dtype.itemsize == 1 and dtype.kind not in "iu"
    found: list[Array]
    if op == "prod":
        # The positions of the factors differ from element to element.
        found = [np.ones(count) for _ in range(ranks)]
        for rank in (0, ranks - 1):
            found[rank] = generator.integers(1, 3, count).astype(np.float64)
    elif op in ("sum", "avg"):
        high = 1 if narrow else 4
        # At most eight ranks' ones: e5m2 has 3 significant bits, so 8 is exact and 9 is not.
        found = [
            generator.integers(0, high + 1, count) * (rank < 8 or not narrow) * 1.0
            for rank in range(ranks)
        ]
        if narrow:
            # 5 and 7 need 3 significant bits, which e5m2 has.
            found = [values if rank < 7 else values * 0 for rank, values in enumerate(found)]
    else:
        low = 0 if dtype.kind == "u" else -7
        found = [generator.integers(low, 8, count).astype(np.float64) for _ in range(ranks)]
    return [values.astype(dtype) for values in found]


def combine(arrays: list[Array], op: str) -> Array:
    """The element-wise combination over ranks, rounded once to the type."""
    dtype = arrays[0].dtype
    wide = np.stack([array.astype(np.float64) for array in arrays])
    if op in ("sum", "avg"):
        total = wide.sum(axis=0)
        if op == "avg":
            total = total / len(arrays)
            if dtype.kind in "iu":
                total = np.trunc(total)
    elif op == "prod":
        total = wide.prod(axis=0)
    else:
        total = wide.max(axis=0) if op == "max" else wide.min(axis=0)
    # Through float32, in which the library combines narrow floats.
    narrow = dtype.itemsize < 4 and dtype.kind not in "iu"
    rounded: Array = (total.astype(np.float32) if narrow else total).astype(dtype)
    return rounded


def bits(array: Array) -> bytes:
    """For comparison to the bit."""
    return np.ascontiguousarray(array).tobytes()


def close(array: Array, wanted: Array, op: str, ranks: int) -> bool:
    """Equal; averages of floats within the roundings of one product and one sum per rank."""
    if op != "avg" or array.dtype.kind in "iu":
        return bits(array) == bits(wanted)
    # Half a unit in the last place; of the coarser type where two have one size.
    rounding = {1: 2.0**-3, 2: 2.0**-8, 4: 2.0**-24, 8: 2.0**-53}[array.dtype.itemsize]
    difference = np.abs(array.astype(np.float64) - wanted.astype(np.float64))
    allowed = (ranks + 1) * rounding * np.abs(wanted.astype(np.float64)) + 2.0**-9
    return bool((difference <= allowed).all())
