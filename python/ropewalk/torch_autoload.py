"""Tells PyTorch of the backend "ropewalk" when PyTorch is imported: see [project.entry-points].

Imports little, since every program that imports PyTorch imports it. The backend itself
(torch_backend.py) is imported when the first group is made.
"""

from __future__ import annotations

from typing import Any


def register() -> None:
    """Registers the backend; does nothing when it is registered, or PyTorch has no such thing."""
    import torch.distributed as dist

    if not dist.is_available() or "ROPEWALK" in dist.Backend._plugins:
        return
    dist.Backend.register_backend("ropewalk", _create, extended_api=True, devices=["cpu", "cuda"])
    dist.register_rendezvous_handler("ropewalk", _rendezvous)


def _rendezvous(url: str, **options: Any) -> Any:
    from ropewalk import torch_joining

    return torch_joining.rendezvous(url, **options)


def _create(options: Any, backend_options: Any = None) -> Any:
    from ropewalk import torch_backend

    return torch_backend.create(options, backend_options)
