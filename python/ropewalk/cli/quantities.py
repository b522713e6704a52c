"""Quantities as people read them."""

from __future__ import annotations


def decimal_bytes(size: float) -> str:
    """Bytes with three digits, in powers of 1000: "1.05 MB"."""
    for unit, power in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= power:
            return f"{size / power:.3g} {unit}"
    return f"{size:.3g} bytes"
