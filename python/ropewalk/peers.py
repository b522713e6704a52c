"""How fast the GPUs of this host reach each other's memory and the host's."""

from __future__ import annotations

from typing import Any

from ropewalk import _library


def measure_peers(num_bytes: int = 64 << 20, repetitions: int = 20) -> dict[str, Any]:
    """Measures all pairs of GPUs, and each GPU with the host.

    For processes in which no communicator has a GPU: peer access is switched on and off.

    Args:
        num_bytes: of one copy, for bandwidths; a multiple of 16.
        repetitions: copies that are timed together.

    Returns:
        `gpus`, `peer_access` (whether row can access column), `matrices` and `host`; see
        rwMeasurePeers in diagnostics.h.

    Raises:
        UsageError: there are no GPUs here; the text says why.
        ArgumentError: a size or number that cannot be.
    """
    found: dict[str, Any] = _library.json_of(
        _library.library().rwMeasurePeers, num_bytes, repetitions
    )
    return found
