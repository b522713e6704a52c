"""PyTorch's process group over Ropewalk: `torch.distributed.init_process_group("ropewalk")`.

PyTorch imports this module when it makes the first such group, for tensors on the CPU and on CUDA
GPUs. (PyTorch before 2.5, and with TORCH_DEVICE_BACKEND_AUTOLOAD=0, needs `import
ropewalk.torch_backend`.)

Operations on the CPU are run by a thread of the group, in order. Those on a GPU are enqueued. Where
the program waits for them at once (async_op=False), they go to the current stream, as PyTorch has
NCCL do it: that saves two changes of streams, some 6 us. Others go to a stream of the group's own,
after what the current stream holds; a Work's `wait` lets the current stream wait for the result.
Sends and receives have connections of their own (torch_messages.py), so that they wait only for
their partner.

A group has a GPU if every rank has one: the current CUDA device where the program has chosen one,
else that of the local rank. All of NCCL's types are reduced; booleans by their logical operators,
complex numbers by sum and average, integers also by their bits; everything can be moved.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
import weakref
from datetime import timedelta
from typing import Any, Callable, Optional

import torch
import torch.distributed as dist

from ropewalk import torch_autoload
from ropewalk.communicator import Communicator
from ropewalk.errors import ArgumentError, Error, TimeoutError, UsageError
from ropewalk.torch_compiling import not_traced, offer_kernels
from ropewalk.torch_errors import named
from ropewalk.torch_errors import timeout as timeout_error
from ropewalk.torch_joining import Meeting, attach, limit_of
from ropewalk.torch_messages import Messages
from ropewalk.torch_reductions import all_reduce, reduce_scatter, reduce_to
from ropewalk.torch_streams import On
from ropewalk.torch_tensors import Staged, flat, flat_bytes
from ropewalk.torch_threads import Worker
from ropewalk.torch_work import Work

Tensor = Any  # torch.Tensor; the type checker does not read PyTorch
Body = Callable[[Communicator], None]

# No program's own: those are not negative.
_BARRIER_TAG = -1

_CPU = torch.device("cpu")


@not_traced
class RopewalkGroup(dist.ProcessGroup):  # type: ignore[misc]
    """A process group. Made by `torch.distributed`; methods are torch.distributed's own."""

    def __init__(
        self, store: Any, rank: int, size: int, timeout: timedelta, global_ranks: list[int]
    ) -> None:
        """Joins the ranks of `store`, whose ranks in the whole job are `global_ranks`. All come."""
        super().__init__(rank, size)
        self._name = self._description = ""
        self._store = store
        self._rank, self._size = rank, size
        self._ranks = global_ranks
        self._seconds = limit_of(timeout)
        joining = min(self._seconds, limit_of(store.timeout))
        self._on_host = self._called(lambda: Meeting(store, "all", rank, size).join(joining))
        self._worker = Worker("ropewalk")
        self._gpu, self._why_no_gpu = self._called(lambda: attach(self._on_host))
        self._stream: Any = None
        if self._gpu is not None:
            self._stream = torch.cuda.Stream(self._gpu.device)
        for comm in filter(None, (self._on_host, self._gpu)):
            comm.set_timeout(self._seconds)
        self._timeouts = {id(self._on_host): self._seconds, id(self._gpu): self._seconds}
        self._messages = Messages(store, global_ranks, rank, self._seconds, self._on_host.check)
        self._coalesced: Optional[list[Work]] = None
        weakref.finalize(self, self._messages.close)

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

    @property
    def group_desc(self) -> str:
        """What the group is for."""
        return self._description

    def get_group_store(self) -> Any:
        """The store by which the ranks found each other."""
        return self._store

    # What PyTorch asks a group's backend for a kind of device, it asks the group here.

    @property
    def _device_types(self) -> list[Any]:
        devices = ["cpu"] if self._gpu is None else ["cpu", "cuda"]
        return [torch.device(device) for device in devices]

    def _get_backend(self, device: Any) -> RopewalkGroup:
        if torch.device(device).type not in {known.type for known in self._device_types}:
            raise UsageError(f"no backend for {device}: {self._why_no_gpu or 'CPU and CUDA only'}")
        return self

    supports_splitting = supports_shrinking = supports_coalescing = supports_time_estimate = False

    def supports_tensor_alloc(self, _device: Any) -> bool:
        """Whether the backend has memory of its own to give."""
        return False

    def set_timeout(self, timeout: timedelta) -> None:
        """How long operations that are started later may take."""
        self._seconds = self._messages.seconds = limit_of(timeout)

    _set_default_timeout = set_timeout

    # ---- how operations run

    def _called(self, call: Callable[[], Any]) -> Any:
        """What `call` returns; its errors name ranks of the whole job."""
        try:
            return call()
        except Exception as error:
            raise named(error, self._ranks) from None

    def _run(
        self,
        name: str,
        inputs: list[Tensor],
        outputs: list[Tensor],
        body: Body,
        result: Any,
        opts: Any,
    ) -> Work:
        """Runs `body` where the tensors are.

        Args:
            name: the operation's.
            inputs: the tensors that it reads, as far as this rank gives any.
            outputs: those that it writes besides.
            body: the operation.
            result: what the future gives.
            opts: PyTorch's own, which may hold a timeout.
        """
        comm, stream = self._on_host, None
        tensors = inputs or outputs
        device = tensors[0].device if tensors else _CPU
        if device.type == "cuda":
            if self._gpu is None:
                raise UsageError(f"tensors on {device}: {self._why_no_gpu}")
            comm, stream = self._gpu, self._stream
        seconds = _own_seconds(opts) or self._seconds
        # Within coalescing operations, too, PyTorch waits later. (Before 2.7 it does not say.)
        at_once = self._coalesced is None and not getattr(opts, "asyncOp", True)
        if at_once and stream is not None:
            stream = torch.cuda.current_stream(device.index)
        work = Work(name, result, stream, inputs)

        def job() -> None:
            try:
                self._limit(comm, seconds)
                body(comm)
            except TimeoutError as error:
                late = TimeoutError(f"{error}; the timeout is {seconds:.3g} s")
                raise named(late, self._ranks) from None
            except Exception as error:
                raise named(error, self._ranks) from None

        if stream is None:
            self._worker.put(functools.partial(work.run, job))
        elif at_once:
            work.run(job)
        else:
            stream.wait_event(torch.cuda.current_stream(device.index).record_event())
            with On(stream):
                for tensor in (*inputs, *outputs):
                    tensor.record_stream(stream)  # its memory must not be given away before
                work.run(job)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _limit(self, comm: Communicator, seconds: float) -> None:
        """Sets the communicator's timeout where it has another one."""
        if self._timeouts[id(comm)] != seconds:
            comm.set_timeout(seconds)
            self._timeouts[id(comm)] = seconds

    # ---- reductions

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> Work:
        """Reduces tensors over all ranks, in place."""
        op = opts.reduceOp if opts is not None else dist.ReduceOp.SUM

        def body(comm: Communicator) -> None:
            for tensor in tensors:
                all_reduce(comm, tensor, op)

        return self._run("all_reduce", tensors, [], body, tensors, opts)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> Work:
        """As `allreduce`, one by one."""
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: list[Tensor], opts: Any) -> Work:
        """Combines tensors of all ranks; the root gets the result."""

        def body(comm: Communicator) -> None:
            for tensor in tensors:
                reduce_to(comm, tensor, opts.reduceOp, opts.rootRank)

        return self._run("reduce", tensors, [], body, tensors, opts)

    def reduce_scatter(
        self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None
    ) -> Work:
        """Combines the inputs; each rank gets its own block."""
        op = opts.reduceOp if opts is not None else dist.ReduceOp.SUM

        def body(comm: Communicator) -> None:
            for output, blocks in zip(outputs, inputs):
                with Staged(output) as staged:
                    whole = torch.cat([flat(block) for block in blocks])
                    reduce_scatter(comm, staged.tensor, whole, op)

        return self._run(
            "reduce_scatter",
            [block for blocks in inputs for block in blocks],
            outputs,
            body,
            outputs,
            opts,
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
                    reduce_scatter(comm, staged.tensor, flat(whole), op)

        return self._run("reduce_scatter", inputs, outputs, body, outputs, opts)

    # ---- moves

    def broadcast(self, tensors: list[Tensor], opts: Any) -> Work:
        """Every rank gets the root's tensors."""

        def body(comm: Communicator) -> None:
            for tensor in tensors:
                with Staged(tensor) as staged:
                    comm.broadcast(flat_bytes(staged.tensor), opts.rootRank)

        return self._run("broadcast", tensors, [], body, tensors, opts)

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
            "all_gather",
            inputs,
            [block for blocks in outputs for block in blocks],
            body,
            outputs,
            opts,
        )

    def allgather_coalesced(
        self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None
    ) -> Work:
        """As `allgather` of several tensors: outputs[r] are those of rank r."""
        return self.allgather([list(blocks) for blocks in zip(*outputs)], inputs, opts)

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

        return self._run("all_gather", inputs, outputs, body, outputs, opts)

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
        return self._run("gather", inputs, received, body, outputs, opts)

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
        return self._run("scatter", sent, outputs, body, outputs, opts)

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

        return self._run("all_to_all", inputs, outputs, body, outputs, opts)

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

        return self._run("all_to_all", [data], [output], body, [output], opts)

    # The names of torch before 2.13.
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    alltoall_base = all_to_all_single

    # ---- point to point

    def send(self, tensors: list[Tensor], destination: int, tag: int = 0) -> Work:
        """Sends to a rank. Messages of one tag arrive in order."""
        return self._noted(self._messages.send(tensors, destination, tag))

    def recv(self, tensors: list[Tensor], source: int, tag: int = 0) -> Work:
        """Receives from a rank."""
        return self._noted(self._messages.receive(tensors, source, tag))

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> Work:
        """Receives the first message of that tag from any rank; `source_rank` gives the rank."""
        return self._noted(self._messages.receive(tensors, None, tag))

    def _noted(self, work: Work) -> Work:
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _start_coalescing(self, _device: Any) -> None:
        """What follows may be waited for as one."""
        self._coalesced = []

    def _end_coalescing(self, _device: Any) -> Work:
        """That one; operations are not joined."""
        works, self._coalesced = self._coalesced or [], None
        together = Work("coalesced", [])
        left = len(works)
        changing = threading.Lock()

        def wait_for_all() -> None:
            for work in works:
                work.wait()

        def one_is_done() -> None:
            nonlocal left
            with changing:
                left -= 1
                if left > 0:
                    return
            together.run(wait_for_all)

        for work in works:
            work.when_done(one_is_done)
        if not works:
            together.end()
        return together

    # ---- barriers, the end

    def barrier(self, opts: Any = None) -> Work:
        """Done when every rank has called, and when the GPU has run what it was given before."""
        if self._gpu is not None:
            torch.cuda.current_stream(self._gpu.device).synchronize()
            self._stream.synchronize()
        return self._run("barrier", [], [], lambda comm: comm.barrier(), [], opts)

    def monitored_barrier(
        self, timeout: Optional[timedelta] = None, wait_all_ranks: bool = False
    ) -> None:
        """A barrier at which rank 0 names the missing ranks.

        Args:
            timeout: None is the group's.
            wait_all_ranks: rank 0 names all of them, not the first.

        Raises:
            TimeoutError: on rank 0 naming the ranks, on the others naming rank 0.
        """
        seconds = self._seconds if timeout is None else timeout.total_seconds()
        token = torch.zeros(1, dtype=torch.uint8)
        mine = self._ranks[self._rank]
        if self._rank != 0:
            try:
                self.send([token], 0, _BARRIER_TAG).wait(timedelta(seconds=seconds))
                self._messages.receive([token], 0, _BARRIER_TAG, 2 * seconds).wait()
            except Exception as error:
                raise timeout_error(
                    f"Rank {mine} successfully reached monitoredBarrier, but received errors while "
                    f"waiting for send/recv from rank {self._ranks[0]}: {error}"
                ) from error
            return
        if seconds <= 0:
            raise timeout_error(f"Rank {mine} timed out in monitoredBarrier after {seconds} s")
        until = time.monotonic() + seconds
        coming = {
            rank: self._messages.receive([token.clone()], rank, _BARRIER_TAG, seconds)
            for rank in range(1, self._size)
        }
        away: list[int] = []
        for rank, work in coming.items():
            try:
                work.wait(timedelta(seconds=max(until - time.monotonic(), 1e-3)))
            except Exception:
                away.append(rank)
                if not wait_all_ranks:
                    break
        if away:
            ranks = "Rank" if len(away) == 1 else "Ranks"
            names = ", ".join(str(self._ranks[rank]) for rank in away)
            raise timeout_error(
                f"[Rank {mine}]: {ranks} {names} failed to pass monitoredBarrier in {seconds:.3g} s"
            )
        for rank in coming:
            self.send([token], rank, _BARRIER_TAG)

    def abort(self) -> None:
        """Ends every operation of this rank with an error, and notifies the others."""
        self._messages.abort()
        for comm in (self._on_host, self._gpu):
            if comm is not None and not comm.closed:
                comm.abort()

    def shutdown(self) -> None:
        """Leaves in order, when the operations that were started have ended."""
        self._messages.close()
        with contextlib.suppress(RuntimeError):  # the program ends, or it was called before
            self._worker.put(self._leave)
        self._worker.close()

    def _leave(self) -> None:
        for comm in (self._gpu, self._on_host):
            if comm is not None and not comm.closed:
                with contextlib.suppress(Error):  # nobody waits for it
                    comm.finalize()


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


def _own_seconds(opts: Any) -> Optional[float]:
    """The timeout that a call has of its own; the communicator has that of the setting."""
    timeout = getattr(opts, "timeout", None)
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else 0.0
    return seconds if seconds > 0 else None


def create(options: Any, _backend_options: Any = None) -> RopewalkGroup:
    """What torch.distributed calls for a group of the backend "ropewalk"."""
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    return RopewalkGroup(
        options.store, options.group_rank, options.group_size, options.timeout, ranks
    )


def _offer_monitored_barrier() -> None:
    """dist.monitored_barrier refuses groups that are not Gloo's; lets ours pass."""
    theirs = dist.monitored_barrier

    @functools.wraps(theirs)
    def monitored_barrier(
        group: Any = None, timeout: Any = None, wait_all_ranks: bool = False
    ) -> None:
        ours = dist.group.WORLD if group is None else group
        if not isinstance(ours, RopewalkGroup):
            theirs(group, timeout, wait_all_ranks)
            return
        if isinstance(timeout, (int, float)):
            timeout = timedelta(seconds=timeout)
        ours.monitored_barrier(timeout, wait_all_ranks)

    dist.monitored_barrier = dist.distributed_c10d.monitored_barrier = monitored_barrier


torch_autoload.register()
offer_kernels(RopewalkGroup)
_offer_monitored_barrier()
