"""Registers the backend "ropewalk" when PyTorch is imported: see [project.entry-points].

Imports little, since every program that imports PyTorch imports it. The backend itself
(torch_backend.py) is imported when the first group is made.
"""

from __future__ import annotations

import functools
import sys
from typing import Any


def register() -> None:
    """Registers the backend; does nothing when it is registered, or PyTorch has no such thing."""
    import torch.distributed as dist

    if not dist.is_available() or "ROPEWALK" in dist.Backend._plugins:
        return
    dist.Backend.register_backend("ropewalk", _create, extended_api=True, devices=["cpu", "cuda"])
    dist.register_rendezvous_handler("ropewalk", _rendezvous)
    _let_timeouts_pass(dist.distributed_c10d)


def _let_timeouts_pass(c10d: Any) -> None:
    """_set_pg_timeout knows groups of NCCL and Gloo only; hands it ours.

    Done here, since programs import the function by its name before they make a group.
    """
    theirs = getattr(c10d, "_set_pg_timeout", None)
    if theirs is None:
        return

    @functools.wraps(theirs)
    def _set_pg_timeout(timeout: Any, group: Any = None) -> None:
        chosen = c10d._get_default_group() if group is None else group
        backend = sys.modules.get("ropewalk.torch_backend")
        if backend is not None and isinstance(chosen, backend.RopewalkGroup):
            chosen.set_timeout(timeout)
        else:
            theirs(timeout, group)

    c10d._set_pg_timeout = _set_pg_timeout


def _rendezvous(url: str, **options: Any) -> Any:
    from ropewalk import torch_joining

    return torch_joining.rendezvous(url, **options)


def _create(options: Any, backend_options: Any = None) -> Any:
    from ropewalk import torch_backend

    return torch_backend.create(options, backend_options)
