"""One rank of copy_engines_gpu_test.py, on Ropewalk's libnccl.so.2, in a process of its own: PART.

Windows are of ncclMemAlloc's memory, registered as symmetric; what made a call is in the records
(setting TRACE_FILE), which the test reads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from typing import Any, Callable

import nccl
import torch
import torch.distributed as dist
from nccl import FLOAT32, SUM, Comm, Config, Nccl, UniqueId

SYMMETRIC = 1
POLICY_ZERO = 2
TIMEOUT = nccl.REMOTE  # of NCCL 2.28's API, which has no other one
INT8, INT64, FLOAT16 = 0, 4, 6
KINDS = {
    INT8: torch.int8,
    INT64: torch.int64,
    FLOAT16: torch.float16,
    FLOAT32: torch.float32,
}
# Odd ones, of less than a pack and of more than COPY_ENGINES=auto begins with.
COUNTS = (1, 3, 1021, 65536, (1 << 20) + 7)
LARGEST = COUNTS[-1]
WINDOW_BYTES = 96 << 20

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
DEVICE = torch.device("cuda", rank)
api = Nccl(nccl.load())
store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), size, rank == 0)
stream = torch.cuda.Stream()


class View:
    """Memory as PyTorch takes it."""

    def __init__(self, address: int, count: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (count,), "typestr": "|u1", "data": (address, False), "version": 3,
        }  # fmt: skip


class Job:
    """A communicator with a window in which outputs lie."""

    made = 0

    def __init__(self, policy: int | None = None, flags: int = SYMMETRIC) -> None:
        Job.made += 1
        unique = UniqueId()
        key = f"id {Job.made}"
        if rank == 0:
            api.GetUniqueId(ctypes.byref(unique))
            store.set(key, bytes(unique))
        unique = UniqueId.from_buffer_copy(store.get(key))
        self.comm = Comm()
        config = Config()
        if policy is not None:
            config.policy = policy
        api.CommInitRankConfig(ctypes.byref(self.comm), size, unique, rank, ctypes.byref(config))
        memory = ctypes.c_void_p()
        api.MemAlloc(ctypes.byref(memory), WINDOW_BYTES)
        assert memory.value
        self.address = memory.value
        self.window = ctypes.c_void_p()
        self.register(flags)
        self.memory = torch.as_tensor(View(self.address, WINDOW_BYTES), device=DEVICE)

    def register(self, flags: int) -> None:
        api.CommWindowRegister(
            self.comm, self.address, WINDOW_BYTES, ctypes.byref(self.window), flags
        )

    def at(self, offset: int, count: int, kind: int) -> torch.Tensor:
        """Elements of the window."""
        width = torch.empty((), dtype=KINDS[kind]).element_size()
        return self.memory[offset : offset + count * width].view(KINDS[kind])

    def close(self) -> None:
        assert api.async_error(self.comm) == nccl.SUCCESS, api.library.ncclGetLastError(self.comm)
        api.CommWindowDeregister(self.comm, self.window)
        api.CommDestroy(self.comm)
        api.MemFree(self.address)


def values(owner: int, count: int, kind: int, seed: int) -> torch.Tensor:
    numbers = torch.arange(count, device=DEVICE, dtype=torch.int64)
    return ((numbers * 7 + owner * 13 + seed) % 101).to(KINDS[kind])


class Call:
    """One operation with given places, and its right result."""

    def __init__(self, job: Job, operation: str, count: int, kind: int, offset: int) -> None:
        self.job, self.operation, self.count, self.kind = job, operation, count, kind
        self.outputs = count if operation == "broadcast" else count * size
        self.inputs = count * size if operation == "all_to_all" else count
        self.output = job.at(offset, self.outputs, kind)
        self.root = 0

    def own_input(self, in_place: bool) -> torch.Tensor:
        """Where this rank's input lies; else apart from the window."""
        if not in_place:
            return torch.empty(self.inputs, device=DEVICE, dtype=KINDS[self.kind])
        if self.operation == "all_gather":
            return self.output[rank * self.count : (rank + 1) * self.count]
        return self.output

    def enqueue(self, source: torch.Tensor, on: Any) -> None:
        given, target = source.data_ptr(), self.output.data_ptr()
        where = (self.job.comm, on.cuda_stream)
        if self.operation == "all_gather":
            api.AllGather(given, target, self.count, self.kind, *where)
        elif self.operation == "all_to_all":
            api.AlltoAll(given, target, self.count, self.kind, *where)
        else:
            api.Broadcast(given, target, self.count, self.kind, self.root, *where)

    def wanted(self, seed: int) -> torch.Tensor:
        given = [values(r, self.inputs, self.kind, seed) for r in range(size)]
        if self.operation == "all_gather":
            return torch.cat(given)
        if self.operation == "all_to_all":
            own = slice(rank * self.count, (rank + 1) * self.count)
            return torch.cat([one[own] for one in given])
        return given[self.root]


def operations_on(job: Job) -> int:
    """Every operation wherever the buffers lie. @return how many calls"""
    calls = 0
    for operation in ("all_gather", "all_to_all", "broadcast"):
        for count in COUNTS:
            for kind in KINDS:
                for in_place in (False, True):
                    # An odd place, as far as elements allow; all ranks choose the same.
                    call = Call(job, operation, count, kind, 4096 + 8 * (calls % 3))
                    call.root = calls % size
                    with torch.cuda.stream(stream):
                        call.output.fill_(-1)
                        source = call.own_input(in_place)
                        source.copy_(values(rank, call.inputs, kind, calls))
                        call.enqueue(source, stream)
                    stream.synchronize()
                    what = (operation, count, kind, in_place)
                    assert torch.equal(call.output, call.wanted(calls)), what
                    calls += 1
    return calls


def operations() -> None:
    job = Job()
    print(f"calls: {operations_on(job)}")
    job.close()


def by_policy() -> None:
    """ncclConfig_t says so."""
    job = Job(policy=POLICY_ZERO)
    print(f"calls: {operations_on(job)}")
    job.close()


def not_symmetric() -> None:
    """Windows without the promise, then with it, then without again: right all the same."""
    job = Job(flags=0)
    operations_on(job)
    api.CommWindowDeregister(job.comm, job.window)
    job.register(SYMMETRIC)
    calls = operations_on(job)
    api.CommWindowDeregister(job.comm, job.window)
    job.register(0)
    operations_on(job)
    print(f"calls: {calls}")
    job.close()


def repeated() -> None:
    """1000 calls with changing data, one behind the other without the host, among operations of
    kernels that use the same links."""
    job = Job()
    count = 40_001
    calls = [
        Call(job, operation, count, FLOAT32, 8192 + i * (4 << 20))
        for i, operation in enumerate(("all_gather", "all_to_all", "broadcast"))
    ]
    rows = {call.operation: torch.stack([call.wanted(seed) for seed in range(7)]) for call in calls}
    given = [[values(rank, call.inputs, FLOAT32, seed) for seed in range(7)] for call in calls]
    wrong = torch.zeros((), dtype=torch.int64, device=DEVICE)
    sources = [call.own_input(False) for call in calls]
    beside = torch.ones(1000, device=DEVICE)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for i in range(1000):
            k, seed = i % 3, i % 7
            call, source = calls[k], sources[k]
            source.copy_(given[k][seed])
            call.enqueue(source, stream)
            wrong += (call.output != rows[call.operation][seed]).sum()
            if i % 10 == 0:
                beside.fill_(1)
                at = beside.data_ptr()
                api.AllReduce(at, at, 1000, FLOAT32, SUM, job.comm, stream.cuda_stream)
                wrong += (beside != size).sum()
            call.output.fill_(-1)
    stream.synchronize()
    assert int(wrong) == 0, int(wrong)
    print("calls: 1000")
    job.close()


def graphs() -> None:
    """A graph of all three, replayed with other data, with calls between that are in none."""
    job = Job()
    for count in (1021, LARGEST):
        calls = [
            Call(job, operation, count, FLOAT32, 4096 + i * (34 << 20))
            for i, operation in enumerate(("all_gather", "all_to_all", "broadcast"))
        ]
        sources = [call.own_input(False) for call in calls]
        torch.cuda.synchronize()
        for call, source in zip(calls, sources):
            call.enqueue(source, stream)  # prepared
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for call, source in zip(calls, sources):
                call.enqueue(source, stream)
        for seed in range(10):
            for call, source in zip(calls, sources):
                call.output.fill_(-1)
                source.copy_(values(rank, call.inputs, FLOAT32, seed))
            torch.cuda.synchronize()
            with torch.cuda.stream(stream):
                graph.replay()
                graph.replay()
                if seed % 2 == 0:
                    calls[0].enqueue(sources[0], stream)
            torch.cuda.synchronize()
            for call in calls:
                assert torch.equal(call.output, call.wanted(seed)), (call.operation, count, seed)
        del graph
    job.close()


def launched_again() -> None:
    """A graph of two calls, a thousand times without the host, among calls that are in none; the
    program's own work in the graph sees each time's data."""
    job = Job()
    count = 40_001
    calls = [
        Call(job, operation, count, FLOAT32, 8192 + i * (4 << 20))
        for i, operation in enumerate(("all_gather", "all_to_all"))
    ]
    sources = [call.own_input(False) for call in calls]
    own_first = torch.tensor(float(rank), device=DEVICE)
    turn = torch.zeros((), device=DEVICE)
    wrong = torch.zeros((), dtype=torch.int64, device=DEVICE)
    ranks = torch.arange(size, device=DEVICE, dtype=torch.float32)

    def step() -> None:
        turn.add_(1)
        for call, source in zip(calls, sources):
            source.copy_((own_first + turn).expand(source.numel()))
            call.enqueue(source, stream)
            wanted = (ranks + turn).unsqueeze(1).expand(size, count).reshape(-1)
            wrong.add_((call.output != wanted).sum())
            call.output.fill_(-1)

    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        step()  # prepared
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step()
    with torch.cuda.stream(stream):
        for i in range(1000):
            graph.replay()
            if i % 100 == 0:
                step()
    stream.synchronize()
    assert int(wrong) == 0, int(wrong)
    assert int(turn) == 1011, int(turn)
    del graph
    job.close()


def two_communicators() -> None:
    """On streams of their own, at once."""
    jobs = [Job(), Job()]
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    calls = [Call(job, "all_gather", 300_001, FLOAT32, 0) for job in jobs]
    sources = [call.own_input(False) for call in calls]
    wanted = [[call.wanted(seed) for seed in range(4)] for call in calls]
    given = [values(rank, 300_001, FLOAT32, seed) for seed in range(4)]
    wrong = [torch.zeros((), dtype=torch.int64, device=DEVICE) for _ in jobs]
    torch.cuda.synchronize()
    for i in range(200):
        for k, on in enumerate(streams):
            with torch.cuda.stream(on):
                seed = (i + k) % 4
                sources[k].copy_(given[seed])
                calls[k].enqueue(sources[k], on)
                wrong[k] += (calls[k].output != wanted[k][seed]).sum()
    torch.cuda.synchronize()
    assert [int(one) for one in wrong] == [0, 0]
    for job in jobs:
        job.close()


def ended_by(job: Job, result: int, words: str, limit_s: float = 60) -> None:
    """The communicator is told within the limit, and what is enqueued ends. Who hears of another
    rank's failure first has a remote error."""
    begin = time.monotonic()
    while (found := api.async_error(job.comm)) == nccl.SUCCESS:
        assert time.monotonic() - begin < limit_s, "never told"
        time.sleep(0.002)
    said = api.library.ncclGetLastError(job.comm).decode()
    print(f"told after {time.monotonic() - begin:.3f} s: {found}: {said}")
    assert found in (result, nccl.REMOTE), (found, said)
    assert found != result or words in said, said
    stream.synchronize()
    api.CommAbort(job.comm)
    print("all done")
    sys.stdout.flush()
    os._exit(0)  # without TCPStore's own complaints


def prepared_call(count: int = 1 << 16, offset: int = 0) -> tuple[Job, Call, torch.Tensor]:
    job = Job()
    call = Call(job, "all_gather", count, FLOAT32, offset)
    source = call.own_input(False)
    source.fill_(rank)
    torch.cuda.synchronize()
    call.enqueue(source, stream)
    stream.synchronize()
    return job, call, source


def rank_1_dies() -> None:
    """While the others wait for it."""
    if rank == 1:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)


def rank_1_stays_away() -> None:
    """Until the others have given up."""
    if rank == 1:
        time.sleep(30)
        print("all done")
        sys.stdout.flush()
        os._exit(0)


def killed() -> None:
    """Rank 1 dies while the others wait for it."""
    job, call, source = prepared_call()
    rank_1_dies()
    call.enqueue(source, stream)
    ended_by(job, nccl.REMOTE, "rank 1")


def timeout() -> None:
    """Rank 1 does not call."""
    job, call, source = prepared_call()
    rank_1_stays_away()
    call.enqueue(source, stream)
    ended_by(job, TIMEOUT, "rank 1")


def other_call() -> None:
    """Rank 1 calls with another count."""
    job, call, source = prepared_call()
    if rank == 1:
        call.count -= 1
    call.enqueue(source, stream)
    ended_by(job, nccl.USAGE, "count")


def other_buffer() -> None:
    """Rank 1's output is in no window, so that kernels make its call."""
    job, call, source = prepared_call()
    if rank == 1:
        call.output = torch.empty_like(call.output)
    call.enqueue(source, stream)
    ended_by(job, nccl.USAGE, "copy engines")


def other_place() -> None:
    """Rank 1's output lies elsewhere in the window."""
    job, call, source = prepared_call()
    if rank == 1:
        call.output = job.at(8192, call.outputs, FLOAT32)
    call.enqueue(source, stream)
    ended_by(job, nccl.USAGE, "bytes into window")


def aborted() -> None:
    """The program gives up a call for which a rank never came; its stream ends."""
    job, call, source = prepared_call()
    if rank == 1:
        store.wait(["aborted"])
        print("all done")
        sys.stdout.flush()
        os._exit(0)
    call.enqueue(source, stream)
    time.sleep(0.2)
    assert not stream.query()
    begin = time.monotonic()
    api.CommAbort(job.comm)
    stream.synchronize()
    assert time.monotonic() - begin < 10
    store.set("aborted", "yes")
    time.sleep(1)  # the store is this process's
    print("all done")
    sys.stdout.flush()
    os._exit(0)


def exchange(job: Job, source: torch.Tensor, target: torch.Tensor, kind: int, on: Any) -> None:
    """To the next rank and from the one before, at once."""
    where = (job.comm, on.cuda_stream)
    api.GroupStart()
    api.Send(source.data_ptr(), source.numel(), kind, (rank + 1) % size, *where)
    api.Recv(target.data_ptr(), target.numel(), kind, (rank - 1) % size, *where)
    api.GroupEnd()


def messages() -> None:
    """Between windows, of all types and lengths; then from memory that is in none, which copy
    engines carry where the receiver comes first."""
    job = Job()
    before = (rank - 1) % size
    calls = 0
    for windowed in (True, False):
        for count in COUNTS:
            for kind in KINDS:
                target = job.at(4096, count, kind)
                source = job.at(48 << 20, count, kind) if windowed else torch.empty_like(target)
                with torch.cuda.stream(stream):
                    source.copy_(values(rank, count, kind, calls))
                    target.fill_(-1)
                    exchange(job, source, target, kind, stream)
                stream.synchronize()
                wanted = values(before, count, kind, calls)
                assert torch.equal(target, wanted), (windowed, count, kind)
                calls += 2 if windowed else 0
    print(f"calls: {calls}")
    job.close()


def messages_repeated() -> None:
    """600 exchanges with changing data, without the host, among operations of kernels."""
    job = Job()
    count = 300_001
    source, target = job.at(0, count, FLOAT32), job.at(48 << 20, count, FLOAT32)
    given = [values(rank, count, FLOAT32, seed) for seed in range(7)]
    wanted = [values((rank - 1) % size, count, FLOAT32, seed) for seed in range(7)]
    wrong = torch.zeros((), dtype=torch.int64, device=DEVICE)
    beside = torch.ones(1000, device=DEVICE)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for i in range(600):
            source.copy_(given[i % 7])
            exchange(job, source, target, FLOAT32, stream)
            wrong += (target != wanted[i % 7]).sum()
            target.fill_(-1)
            if i % 10 == 0:
                beside.fill_(1)
                at = beside.data_ptr()
                api.AllReduce(at, at, 1000, FLOAT32, SUM, job.comm, stream.cuda_stream)
                wrong += (beside != size).sum()
    stream.synchronize()
    assert int(wrong) == 0, int(wrong)
    print("calls: 1200")
    job.close()


def messages_in_any_order() -> None:
    """Rank 0 has both messages in a group, rank 1 one after the other; the default stream, too."""
    job = Job()
    count = 1 << 20
    source, target = job.at(0, count, FLOAT32), job.at(48 << 20, count, FLOAT32)
    source.fill_(rank)
    torch.cuda.synchronize()
    peer = 1 - rank
    for turn in range(40):
        on = torch.cuda.default_stream() if turn % 4 == 3 else stream
        with torch.cuda.stream(on):
            target.fill_(-1)
        sends = (source.data_ptr(), count, FLOAT32, peer, job.comm, on.cuda_stream)
        receives = (target.data_ptr(), count, FLOAT32, peer, job.comm, on.cuda_stream)
        if rank == 0:
            api.GroupStart()
        if turn % 2 == 0:
            api.Recv(*receives)
        api.Send(*sends)
        if turn % 2 == 1:
            api.Recv(*receives)
        if rank == 0:
            api.GroupEnd()
        torch.cuda.synchronize()
        assert bool((target == peer).all()), turn
    print("calls: 80")
    job.close()


def messages_in_a_graph() -> None:
    """By kernels, among others by copy engines."""
    job = Job()
    count = 70_001
    source, target = job.at(0, count, FLOAT32), job.at(48 << 20, count, FLOAT32)
    source.fill_(rank)
    torch.cuda.synchronize()
    exchange(job, source, target, FLOAT32, stream)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        exchange(job, source, target, FLOAT32, stream)
    for turn in range(20):
        with torch.cuda.stream(stream):
            source.fill_(rank + 10 * turn)
            target.fill_(-1)
            graph.replay()
        stream.synchronize()
        assert bool((target == (rank - 1) % size + 10 * turn).all()), turn
        with torch.cuda.stream(stream):
            target.fill_(-1)
            exchange(job, source, target, FLOAT32, stream)
        stream.synchronize()
        assert bool((target == (rank - 1) % size + 10 * turn).all()), turn
    del graph
    job.close()


def sent(job: Job) -> None:
    part = job.at(0, 1 << 20, FLOAT32)
    api.Send(part.data_ptr(), part.numel(), FLOAT32, 1, job.comm, stream.cuda_stream)


def message_killed() -> None:
    """Rank 1 dies while rank 0 waits for it to receive."""
    job, _, _ = prepared_call()
    rank_1_dies()
    sent(job)
    ended_by(job, nccl.REMOTE, "rank 1")


def message_timeout() -> None:
    """Rank 1 does not receive."""
    job, _, _ = prepared_call()
    rank_1_stays_away()
    sent(job)
    ended_by(job, TIMEOUT, "rank 1")


PARTS: dict[str, Callable[[], None]] = {
    function.__name__: function
    for function in (
        operations, by_policy, not_symmetric, repeated, graphs, launched_again, two_communicators,
        killed, timeout, other_call, other_buffer, other_place, aborted, messages,
        messages_repeated, messages_in_any_order, messages_in_a_graph, message_killed,
        message_timeout,
    )
}  # fmt: skip

if __name__ == "__main__":
    PARTS[sys.argv[1]]()
    print("all done")
