"""What torch.compile needs of a process group in Python that it has of those in C++.

Compiled graphs call functional collectives (torch.ops._c10d_functional), whose C++ calls the
methods of a process group in Python, except for two: "No backend type associated with device type
cpu". PyTorch lets Python give an operator a kernel for a kind of device, but no Backend: that class
of C++ has no constructor for Python.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

Tensor = Any  # torch.Tensor; the type checker does not read PyTorch
Class = TypeVar("Class", bound=type)


def not_traced(decorated: Class) -> Class:
    """Lets torch.compile call a class's methods as it calls those of PyTorch's own, in C++."""
    for member in vars(decorated).values():
        if inspect.isfunction(member):
            # What torch.compiler.disable does, which would import the compiler.
            vars(member)["_torchdynamo_disable"] = True
            vars(member)["_torchdynamo_disable_msg"] = "an operation of a process group"
            # The method may also be called by what the compiler has left as it is.
            with contextlib.suppress(AttributeError):  # of older versions of PyTorch
                frames = torch._C._dynamo.eval_frame
                skip = frames._FrameAction.SKIP
                frames.set_code_exec_strategy(
                    member.__code__, frames._FrameExecStrategy(skip, skip)
                )
    return decorated


_OPERATORS = "_c10d_functional"

_kernels: list[Any] = []  # they last as long as the library object that holds them


def offer_kernels(ours: type) -> None:
    """Registers kernels for those, as far as PyTorch has such operators.

    Args:
        ours: the class of groups in Python. PyTorch's own are served as they were.
    """
    if _kernels:
        return
    library = torch.library.Library(_OPERATORS, "IMPL")
    operators = getattr(torch.ops, _OPERATORS)
    for device in ("CPU", "CUDA"):
        if hasattr(operators, "all_gather_into_tensor_out"):
            library.impl("all_gather_into_tensor_out", _all_gather_into_tensor_out, device)
        if hasattr(operators, "batch_p2p_ops") and hasattr(torch.library, "get_kernel"):
            theirs = torch.library.get_kernel(f"{_OPERATORS}::batch_p2p_ops", device)
            own = functools.partial(_batch_p2p_ops, ours, theirs)
            library.impl("batch_p2p_ops", own, device, with_keyset=True)
    _kernels.append(library)


def _resolved(group: Any) -> Any:
    if isinstance(group, str):
        return c10d._resolve_process_group(group)
    return group if isinstance(group, dist.ProcessGroup) else dist.ProcessGroup.unbox(group)


def _all_gather_into_tensor_out(data: Tensor, _size: int, group: Any, *, out: Tensor) -> Tensor:
    """As PyTorch's own, in C++, for any group: wait_tensor finds what to wait for."""
    group = _resolved(group)
    start = getattr(group, "all_gather_single", None) or group._allgather_base
    c10d._register_work(out, start(out, data))
    return out


def _batch_p2p_ops(
    ours: Any,  # a class
    theirs: Any,
    keyset: Any,
    names: list[str],
    peers: list[int],
    tags: list[int],
    tensors: list[Tensor],
    group: Any,
) -> list[Tensor]:
    """Sends and receives; each has a tensor to wait for, which a send has for nothing else."""
    found = _resolved(group)
    if not isinstance(found, ours):
        passed_on: list[Tensor] = theirs.call_boxed(keyset, names, peers, tags, tensors, group)
        return passed_on
    results = []
    for name, peer, tag, tensor in zip(names, peers, tags, tensors):
        if name == "isend":
            result, work = tensor.new_empty(0), found.send([tensor], peer, tag)
        else:
            result, work = tensor, found.recv([tensor], peer, tag)
        c10d._register_work(result, work)
        results.append(result)
    return results
