"""Errors as PyTorch's users know them: global ranks, and what PyTorch's own backends raise."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from ropewalk import errors

# Programs that catch what PyTorch's own backends raise catch ours too: a RuntimeError.
_THEIRS: Any = getattr(dist, "DistBackendError", RuntimeError)

_BOTH: dict[type[errors.Error], type[errors.Error]] = {
    ours: type(ours.__name__, (ours, _THEIRS), {"__doc__": ours.__doc__})
    for ours in (
        errors.Error,
        errors.ArgumentError,
        errors.UsageError,
        errors.SystemCallError,
        errors.CudaError,
        errors.PeerLostError,
        errors.TimeoutError,
        errors.InterruptedError,
    )
}

# "rank 1", "ranks 1 3" (as the library lists them), "ranks 1, 2 and 3"
_RANKS = re.compile(r"\branks? \d+(?:(?: |, | and |, and )\d+\b(?! rank))*", re.IGNORECASE)


def with_global_ranks(text: str, ranks: Sequence[int]) -> str:
    """`text` that names ranks of a communicator, with those of the whole job.

    Args:
        text: what an error says.
        ranks: the global rank of each rank of the communicator.
    """

    def rename(found: re.Match[str]) -> str:
        return re.sub(
            r"\d+",
            lambda one: str(ranks[int(one[0])]) if int(one[0]) < len(ranks) else one[0],
            found[0],
        )

    return _RANKS.sub(rename, text)


def named(error: Exception, ranks: Sequence[int]) -> Exception:
    """`error` of a communicator as the backend raises it; other exceptions as they are."""
    both = _BOTH.get(type(error))  # type: ignore[arg-type]
    if both is None:
        return error
    return both(with_global_ranks(str(error), ranks)).with_traceback(error.__traceback__)


def timeout(text: str) -> errors.TimeoutError:
    """A TimeoutError as the backend raises it."""
    made = _BOTH[errors.TimeoutError](text)
    assert isinstance(made, errors.TimeoutError)
    return made


def first_rank(text: str) -> int:
    """The rank that an error names first; -1 without one."""
    found = re.search(r"\brank (\d+)", text)
    return int(found[1]) if found else -1
