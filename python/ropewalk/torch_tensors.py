"""Tensors as a communicator's operations take them: contiguous, of a type that they know."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Optional, Union

import torch
import torch.distributed as dist

from ropewalk.communicator import Communicator
from ropewalk.errors import ArgumentError
from ropewalk.operators import PreMulSum

Tensor = Any  # torch.Tensor; the type checker does not read PyTorch


def flat(tensor: Tensor) -> Tensor:
    """All elements in one row; a copy only where they do not lie so."""
    return tensor.detach().contiguous().view(-1)


def flat_bytes(tensor: Tensor) -> Tensor:
    """As `flat`, as bytes: moved data needs no type."""
    return flat(tensor).view(torch.uint8)


class Staged:
    """A tensor to be written, or a contiguous stand-in that is copied back at the end."""

    def __init__(self, tensor: Tensor) -> None:
        """`tensor` is what to work on."""
        self._given = tensor.detach()
        self.tensor = self._given.contiguous()

    def put_back(self) -> None:
        """Copies the stand-in back, where there is one."""
        if self.tensor.data_ptr() != self._given.data_ptr():
            self._given.copy_(self.tensor)

    def __enter__(self) -> Staged:
        """Itself."""
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        """Copies the result back, unless the operation failed."""
        if kind is None:
            self.put_back()


_OPS = dist.ReduceOp
# Our operator for PyTorch's, and that for booleans as bytes of 0 and 1.
_NAMES: dict[Any, tuple[str, str]] = {
    _OPS.SUM: ("sum", "max"),
    _OPS.AVG: ("avg", ""),
    _OPS.PRODUCT: ("prod", "min"),
    _OPS.MIN: ("min", "min"),
    _OPS.MAX: ("max", "max"),
}


def kind_of(op: Any) -> Any:
    """The member of the enumeration that `op` is, which may hold a factor besides."""
    return getattr(op, "op", op)


_SIMPLE = {torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int64}


def simple_name(tensor: Tensor, op: Any) -> str:
    """Our operator for `op`, where a tensor can be reduced as it is; "" for a second look."""
    if tensor.dtype in _SIMPLE and not tensor.is_sparse and tensor.is_contiguous():
        return _NAMES.get(kind_of(op), ("", ""))[0]
    return ""


def reduced(tensor: Tensor, op: Any, comm: Communicator) -> tuple[Tensor, Union[str, PreMulSum]]:
    """The view of a contiguous tensor that `op` can work on, and our operator.

    Raises:
        ArgumentError: the operator does not exist here for this type.
    """
    row = flat(tensor)
    kind = kind_of(op)
    if kind == _OPS.PREMUL_SUM:
        factor = op.factor if hasattr(op, "factor") else op.__getstate__()[1]
        return row, comm.pre_mul_sum(float(factor), str(row.dtype).replace("torch.", ""))
    ours, logical = _NAMES.get(kind, ("", ""))
    if row.dtype == torch.bool and logical:
        return row.view(torch.uint8), logical
    if row.is_complex() and ours in ("sum", "avg"):
        return torch.view_as_real(row).view(-1), ours
    if row.dtype == torch.bool or row.is_complex() or not ours:
        raise ArgumentError(f"{op} of {row.dtype} is not offered by Ropewalk")
    return row, ours
