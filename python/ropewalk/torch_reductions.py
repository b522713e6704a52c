"""Reductions of tensors, also those that the library does not have: of bits, and sparse ones."""

from __future__ import annotations

from functools import reduce
from typing import Any, Optional

import torch
import torch.distributed as dist

from ropewalk.communicator import Communicator
from ropewalk.errors import ArgumentError
from ropewalk.torch_tensors import Staged, flat, flat_bytes, kind_of, reduced, simple_name

Tensor = Any  # torch.Tensor; the type checker does not read PyTorch


def all_reduce(comm: Communicator, tensor: Tensor, op: Any) -> None:
    """Reduces `tensor` over all ranks, in place."""
    simple = simple_name(tensor, op)
    if simple:
        comm.all_reduce(tensor, simple)
        return
    if tensor.is_sparse:
        _sum_sparse(comm, tensor, op)
        return
    with Staged(tensor) as staged:
        if _bits(op, tensor) is None:
            view, name = reduced(staged.tensor, op, comm)
            comm.all_reduce(view, name)
        else:
            row = flat(staged.tensor)
            row.copy_(_all_reduce_bits(comm, row, op))


def reduce_to(comm: Communicator, tensor: Tensor, op: Any, root: int) -> None:
    """Combines `tensor` of all ranks; the root's holds the result."""
    with Staged(tensor) as staged:
        if _bits(op, tensor) is None:
            view, name = reduced(staged.tensor, op, comm)
            comm.reduce(view, name, root)
            return
        row = flat(staged.tensor)
        result = _all_reduce_bits(comm, row, op)
        if comm.rank == root:
            row.copy_(result)


def reduce_scatter(comm: Communicator, output: Tensor, whole: Tensor, op: Any) -> None:
    """Combines `whole`, a row of all ranks' blocks; `output` is this rank's own."""
    if _bits(op, output) is None:
        view, name = reduced(whole, op, comm)
        target, _ = reduced(output, op, comm)
        comm.reduce_scatter(view, name, out=target)
    else:
        flat(output).copy_(_scatter_bits(comm, whole, op))


_BITS: dict[Any, Any] = {
    dist.ReduceOp.BAND: torch.bitwise_and,
    dist.ReduceOp.BOR: torch.bitwise_or,
    dist.ReduceOp.BXOR: torch.bitwise_xor,
}


def _bits(op: Any, tensor: Tensor) -> Optional[Any]:
    """The function of two tensors that `op` is, where the library has no operator for it."""
    function = _BITS.get(kind_of(op))
    if function is not None and (tensor.is_floating_point() or tensor.is_complex()):
        raise ArgumentError(f"{op} of {tensor.dtype}: bits of integers and booleans only")
    return function


def _scatter_bits(comm: Communicator, whole: Tensor, op: Any) -> Tensor:
    received = torch.empty_like(whole)
    comm.all_to_all(flat_bytes(whole), flat_bytes(received))
    return reduce(_bits(op, whole), received.view(comm.size, -1).unbind())  # type: ignore[arg-type]


def _all_reduce_bits(comm: Communicator, row: Tensor, op: Any) -> Tensor:
    block = -(-row.numel() // comm.size)
    padded = torch.nn.functional.pad(row, (0, block * comm.size - row.numel()))
    mine = _scatter_bits(comm, padded, op)
    comm.all_gather(flat_bytes(mine), out=flat_bytes(padded))
    return padded[: row.numel()]


def _sum_sparse(comm: Communicator, tensor: Tensor, op: Any) -> None:
    if op != dist.ReduceOp.SUM:
        raise ArgumentError(f"{op} of a sparse tensor: only SUM is offered")
    mine = tensor.coalesce()
    # Ranks have different numbers of elements, and all must learn of them first.
    dense_dim, sparse_dim = mine.dense_dim(), mine.sparse_dim()
    facts = torch.zeros(comm.size, 3, dtype=torch.int64, device=tensor.device)
    facts[comm.rank] = torch.tensor([sparse_dim, dense_dim, mine._nnz()])
    comm.all_gather(facts)
    facts = facts.cpu()
    for rank, (sparse, dense, _) in enumerate(facts.tolist()):
        if (sparse, dense) != (sparse_dim, dense_dim):
            raise ArgumentError(
                f"sparse tensors differ: rank {rank} has {sparse} sparse and {dense} dense "
                f"dimensions, rank {comm.rank} {sparse_dim} and {dense_dim}"
            )
    counts = facts[:, 2].tolist()
    indices = _gather_uneven(comm, mine.indices().t(), counts)
    values = _gather_uneven(comm, mine.values(), counts)
    total = torch.sparse_coo_tensor(
        indices.t(), values, tensor.shape, check_invariants=False
    ).coalesce()
    tensor.copy_(total)


def _gather_uneven(comm: Communicator, mine: Tensor, counts: list[int]) -> Tensor:
    """The rows of all ranks, of which rank r has counts[r]."""
    rows = mine.new_empty((sum(counts), *mine.shape[1:]))
    blocks = rows.split(counts)
    blocks[comm.rank].copy_(mine)
    for root, block in enumerate(blocks):
        comm.broadcast(flat_bytes(block), root)
    return rows
