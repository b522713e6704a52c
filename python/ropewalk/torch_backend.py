"""PyTorch's process group over Ropewalk: `torch.distributed.init_process_group("ropewalk")`.

Importing this module registers the backend, for tensors on the CPU and on CUDA GPUs:

    import ropewalk.torch_backend
    torch.distributed.init_process_group("ropewalk")

Operations on the CPU are run by a thread of the group, in order. Those on a GPU are enqueued on a
stream of the group's own, after what the current stream holds; a Work's `wait` lets the current
stream wait for the result. Sends and receives have a communicator for each direction of each pair
of ranks (and each tag), made when it is first used, so that they wait only for their partner.

A group has a GPU if every rank has one: the current CUDA device where the program has chosen one,
else that of the local rank. All of NCCL's types are reduced; booleans by their logical operators,
complex numbers by sum and average; everything can be moved.
"""

from __future__ import annotations

import socket
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Optional

import torch
import torch.distributed as dist

import ropewalk
from ropewalk import joining
from ropewalk.communicator import Communicator
from ropewalk.errors import ArgumentError, UsageError
from ropewalk.torch_tensors import Staged, flat, flat_bytes, reduced
from ropewalk.torch_work import Work, settle

Tensor = Any  # torch.Tensor; the type checker does not read PyTorch
Body = Callable[[Communicator], None]


class RopewalkGroup(dist.ProcessGroup):  # type: ignore[misc]
    """A process group. Made by `torch.distributed`; methods are torch.distributed's own."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        """Joins the ranks of `store`. All must come."""
        super().__init__(rank, size)
        self._name = self._description = ""
        self._store = store
        self._rank, self._size = rank, size
        self._on_host = _join(store, "all", rank, size)
        # One thread each, which ends when its jobs are done and the group or the program ends.
        self._worker = ThreadPoolExecutor(1, "ropewalk")
        self._gpu, self._why_no_gpu = _attach(self._on_host)
        self._stream: Any = None
        if self._gpu is not None:
            self._stream = torch.cuda.Stream(self._gpu.device)
        self._channels: dict[str, _Channel] = {}

    def getBackendName(self) -> str:  # noqa: N802
        """The name under which the backend is registered."""
        return "ropewalk"

    # PyTorch keeps names in a group's C++ backends, of which there are none here.

    def setGroupName(self, name: str) -> None:  # noqa: N802
        """Notes the name that torch.distributed gives the group."""
        self._name = name

    def getGroupName(self) -> str:  # noqa: N802
        """That name."""
        return self._name

    @property
    def group_name(self) -> str:
        """That name."""
        return self._name

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        """Notes what the group is for."""
        self._description = description

    def getGroupDesc(self) -> str:  # noqa: N802
        """What the group is for."""
        return self._description

    # ---- how operations run

    def _run(self, tensors: list[Tensor], body: Body, result: Any) -> Work:
        """Runs `body` where `tensors` are; `result` is what the future gives."""
        device = tensors[0].device if tensors else torch.device("cpu")
        if device.type != "cuda":
            future = torch.futures.Future()
            self._worker.submit(lambda: settle(future, lambda: body(self._on_host), result))
            return Work(future)
        gpu = self._gpu
        if gpu is None:
            raise UsageError(f"tensors on {device}: {self._why_no_gpu}")
        future = torch.futures.Future(devices=[device])
        _on_stream(self._stream, tensors, lambda: settle(future, lambda: body(gpu), result))
        return Work(future)

    def _channel(self, source: int, destination: int, tag: int, device: Any) -> _Channel:
        name = f"{source}>{destination}/{tag}/{device.type}"
        if name not in self._channels:
            self._channels[name] = _Channel(self._store, name, int(self._rank != source), device)
        return self._channels[name]

    # ---- reductions

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> Work:
        """Combines tensors of all ranks, in place."""
        op = opts.reduceOp if opts is not None else dist.ReduceOp.SUM

        def body(comm: Communicator) -> None:
            for tensor in tensors:
                with Staged(tensor) as staged:
                    view, name = reduced(staged.tensor, op, comm)
                    comm.all_reduce(view, name)

        return self._run(tensors, body, tensors)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> Work:
        """As `allreduce`, one by one."""
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: list[Tensor], opts: Any) -> Work:
        """Combines tensors of all ranks; the root gets the result."""

        def body(comm: Communicator) -> None:
            for tensor in tensors:
                with Staged(tensor) as staged:
                    view, name = reduced(staged.tensor, opts.reduceOp, comm)
                    comm.reduce(view, name, opts.rootRank)

        return self._run(tensors, body, tensors)

    def reduce_scatter(
        self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None
    ) -> Work:
        """Combines the inputs; each rank gets its own block."""
        op = opts.reduceOp if opts is not None else dist.ReduceOp.SUM

        def body(comm: Communicator) -> None:
            for output, blocks in zip(outputs, inputs):
                with Staged(output) as staged:
                    whole = torch.cat([flat(block) for block in blocks])
                    _reduce_scatter(comm, staged.tensor, whole, op)

        return self._run(
            [*outputs, *(block for blocks in inputs for block in blocks)], body, outputs
        )

    def reduce_scatter_single(self, output: Tensor, data: Tensor, opts: Any = None) -> Work:
        """As `reduce_scatter`, of one tensor that holds all blocks."""
        return self.reduce_scatter_single_coalesced([output], [data], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> Work:
        """As `reduce_scatter_single`, one by one."""
        op = opts.reduceOp if opts is not None else dist.ReduceOp.SUM

        def body(comm: Communicator) -> None:
            for output, whole in zip(outputs, inputs):
                with Staged(output) as staged:
                    _reduce_scatter(comm, staged.tensor, flat(whole), op)

        return self._run([*outputs, *inputs], body, outputs)

    # ---- moves

    def broadcast(self, tensors: list[Tensor], opts: Any) -> Work:
        """Every rank gets the root's tensors."""

        def body(comm: Communicator) -> None:
            for tensor in tensors:
                with Staged(tensor) as staged:
                    comm.broadcast(flat_bytes(staged.tensor), opts.rootRank)

        return self._run(tensors, body, tensors)

    def allgather(
        self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None
    ) -> Work:
        """Every rank gets the tensors of all; they may differ in size."""

        def body(comm: Communicator) -> None:
            for blocks, mine in zip(outputs, inputs):
                if len({block.numel() for block in blocks}) == 1:
                    whole = torch.empty(
                        comm.size * mine.numel(), dtype=mine.dtype, device=mine.device
                    )
                    comm.all_gather(flat_bytes(mine), out=flat_bytes(whole))
                    _deal(whole, blocks)
                    continue
                blocks[comm.rank].copy_(mine)
                for root, block in enumerate(blocks):
                    with Staged(block) as staged:
                        comm.broadcast(flat_bytes(staged.tensor), root)

        return self._run(
            [*inputs, *(block for blocks in outputs for block in blocks)], body, outputs
        )

    def all_gather_single(self, output: Tensor, data: Tensor, opts: Any = None) -> Work:
        """As `allgather`, into one tensor that holds all blocks."""
        return self.all_gather_single_coalesced([output], [data], opts)

    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> Work:
        """As `all_gather_single`, one by one."""

        def body(comm: Communicator) -> None:
            for output, mine in zip(outputs, inputs):
                with Staged(output) as staged:
                    comm.all_gather(flat_bytes(mine), out=flat_bytes(staged.tensor))

        return self._run([*outputs, *inputs], body, outputs)

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> Work:
        """The root gets the tensors of all ranks."""
        is_root = self._rank == opts.rootRank

        def body(comm: Communicator) -> None:
            mine = inputs[0]
            if not is_root:
                comm.gather(flat_bytes(mine), opts.rootRank)
                return
            whole = torch.empty(comm.size * mine.numel(), dtype=mine.dtype, device=mine.device)
            comm.gather(flat_bytes(mine), opts.rootRank, out=flat_bytes(whole))
            _deal(whole, outputs[0])

        received = outputs[0] if is_root else []
        return self._run([*inputs, *received], body, outputs)

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> Work:
        """Each rank gets its own of the root's tensors."""
        is_root = self._rank == opts.rootRank

        def body(comm: Communicator) -> None:
            with Staged(outputs[0]) as staged:
                whole = torch.cat([flat(block) for block in inputs[0]]) if is_root else None
                comm.scatter(
                    None if whole is None else flat_bytes(whole),
                    opts.rootRank,
                    out=flat_bytes(staged.tensor),
                )

        sent = inputs[0] if is_root else []
        return self._run([*outputs, *sent], body, outputs)

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Work:
        """Tensor j goes to rank j; they may differ in size."""

        def body(comm: Communicator) -> None:
            staged = [Staged(output) for output in outputs]
            with comm.group():
                for peer in range(comm.size):
                    if peer == comm.rank:
                        staged[peer].tensor.copy_(inputs[peer])
                        continue
                    comm.send(flat_bytes(inputs[peer]), peer)
                    comm.recv(flat_bytes(staged[peer].tensor), peer)
            for one in staged:
                one.put_back()

        return self._run([*outputs, *inputs], body, outputs)

    def all_to_all_single(
        self,
        output: Tensor,
        data: Tensor,
        output_splits: list[int],
        input_splits: list[int],
        opts: Any = None,
    ) -> Work:
        """Block j of the input goes to rank j; splits count rows, none are equal blocks."""
        if output_splits or input_splits:
            return self.alltoall(
                list(output.split(output_splits or _equal(output, self._size))),
                list(data.split(input_splits or _equal(data, self._size))),
            )

        def body(comm: Communicator) -> None:
            with Staged(output) as staged:
                comm.all_to_all(flat_bytes(data), flat_bytes(staged.tensor))

        return self._run([output, data], body, [output])

    # The names of torch before 2.13.
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    alltoall_base = all_to_all_single

    # ---- point to point, barrier

    def send(self, tensors: list[Tensor], destination: int, tag: int = 0) -> Work:
        """Sends to a rank. Messages of one tag arrive in order."""
        channel = self._channel(self._rank, destination, tag, tensors[0].device)

        def body(comm: Communicator) -> None:
            for tensor in tensors:
                comm.send(flat_bytes(tensor), 1)

        return channel.run(tensors, body)

    def recv(self, tensors: list[Tensor], source: int, tag: int = 0) -> Work:
        """Receives from a rank."""
        channel = self._channel(source, self._rank, tag, tensors[0].device)

        def body(comm: Communicator) -> None:
            for tensor in tensors:
                with Staged(tensor) as staged:
                    comm.recv(flat_bytes(staged.tensor), 0)

        return channel.run(tensors, body)

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> Work:
        """Not offered: a receive names its source."""
        raise UsageError("recv needs a source rank: Ropewalk does not receive from any rank")

    def barrier(self, opts: Any = None) -> Work:
        """Done when every rank has called, and when the GPU has run what it was given before."""
        if self._gpu is not None:
            torch.cuda.current_stream(self._gpu.device).synchronize()
            self._stream.synchronize()
        return self._run([], lambda comm: comm.barrier(), [])

    def abort(self) -> None:
        """Ends every operation of this rank with an error, and tells the others."""
        for comm in (self._on_host, self._gpu):
            if comm is not None and not comm.closed:
                comm.abort()


class _Channel:
    """One direction between two ranks: a communicator of two, and a thread that works on it."""

    def __init__(self, store: Any, name: str, rank: int, device: Any) -> None:
        """The sender is rank 0. Joins in the thread: the partner may come later."""
        self._worker = ThreadPoolExecutor(1, f"ropewalk {name}")
        self._device = device
        self._comm: Optional[Communicator] = None
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._join: Callable[[], Communicator] = lambda: _join(store, name, rank, 2)

    def run(self, tensors: list[Tensor], body: Body) -> Work:
        """Runs `body` on the channel's communicator, in order."""
        here = self._stream
        future = torch.futures.Future(devices=[] if here is None else [self._device])
        before = None if here is None else torch.cuda.current_stream(self._device).record_event()

        def work() -> None:
            if self._comm is None:
                self._comm = self._join()
                if here is not None:
                    self._comm.attach(self._device.index)
            body(self._comm)

        def job() -> None:
            if here is None:
                settle(future, work, tensors)
                return
            here.wait_event(before)
            with torch.cuda.stream(here):
                for tensor in tensors:
                    tensor.record_stream(here)
                settle(future, work, tensors)

        self._worker.submit(job)
        return Work(future)


def _on_stream(stream: Any, tensors: list[Tensor], work: Callable[[], None]) -> None:
    """Enqueues `work` on `stream`, after what the current stream holds."""
    stream.wait_stream(torch.cuda.current_stream(stream.device))
    with torch.cuda.stream(stream):
        for tensor in tensors:
            tensor.record_stream(stream)  # its memory must not be given away before
        work()


def _reduce_scatter(comm: Communicator, output: Tensor, whole: Tensor, op: Any) -> None:
    view, name = reduced(whole, op, comm)
    target, _ = reduced(output, op, comm)
    comm.reduce_scatter(view, name, out=target)


def _deal(whole: Tensor, blocks: list[Tensor]) -> None:
    begin = 0
    for block in blocks:
        block.copy_(whole[begin : begin + block.numel()].view(block.shape))
        begin += block.numel()


def _equal(tensor: Tensor, ranks: int) -> list[int]:
    rows, rest = divmod(tensor.size(0), ranks)
    if rest:
        raise ArgumentError(f"{tensor.size(0)} rows are no multiple of {ranks} ranks")
    return [rows] * ranks


def _join(store: Any, name: str, rank: int, size: int) -> Communicator:
    key = f"ropewalk/{name}"
    if rank == 0:
        made = ropewalk.unique_id()
        store.set(key, made.hex())
    else:
        made = bytes.fromhex(_await(store, key).decode())
    return ropewalk.init(unique_id=made, rank=rank, size=size)


def _await(store: Any, key: str) -> bytes:
    """What rank 0 puts into the store; raises TimeoutError after the store's timeout."""
    # Store.get would hold a lock of the store meanwhile, and with it other threads' set.
    until = time.monotonic() + store.timeout.total_seconds()
    nap = 0.001
    while not store.check([key]):
        if time.monotonic() > until:
            raise ropewalk.TimeoutError(f"no rank put {key} into the store")
        time.sleep(nap)
        nap = min(2 * nap, 0.05)
    value: bytes = store.get(key)
    return value


def _own_gpu(rank: int) -> int:
    """The GPU of this process, -1 without one."""
    if not torch.cuda.is_available() or ropewalk.device_count() == 0:
        return -1
    if torch.cuda.is_initialized() and torch.cuda.current_device() != 0:
        return int(torch.cuda.current_device())  # the program has chosen
    return joining.device_number("cuda", dist.get_rank() if dist.is_initialized() else rank)


def _attach(comm: Communicator) -> tuple[Optional[Communicator], str]:
    """A communicator of the same ranks with GPUs, or why there is none."""
    mine = _own_gpu(comm.rank)
    places = torch.zeros(comm.size, 2, dtype=torch.int64)
    places[comm.rank, 0] = mine
    places[comm.rank, 1] = zlib.crc32(socket.gethostname().encode())
    comm.all_gather(places)
    without = (places[:, 0] < 0).nonzero().flatten().tolist()
    if without:
        reason = ropewalk.why_no_device() or "PyTorch has no CUDA"
        return None, f"rank {without[0]} has no GPU" + (f": {reason}" if mine < 0 else "")
    if len(places.unique(dim=0)) < comm.size:
        return None, "two ranks of the group share a GPU"
    gpu = comm.split(0, comm.rank)
    assert gpu is not None
    try:
        gpu.attach(mine)
    except UsageError as error:
        return None, str(error)
    return gpu, ""


def _create(store: Any, rank: int, size: int, _timeout: Any) -> RopewalkGroup:
    return RopewalkGroup(store, rank, size)


dist.Backend.register_backend("ropewalk", _create, devices=["cpu", "cuda"])
