"""One rank of messages_gpu_test.py, in a process of its own: PART.

$RW_HOSTS: on how many hosts the ranks are, as far as Ropewalk knows (the setting HOST_ID).
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any, Callable

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
HOSTS = int(os.environ.get("RW_HOSTS", "1"))
if HOSTS > 1:
    os.environ["ROPEWALK_HOST_ID"] = f"host{RANK * HOSTS // RANKS}"

import message_programs  # noqa: E402
import numpy as np  # noqa: E402
import ropewalk  # noqa: E402
import torch  # noqa: E402
from ropewalk.communicator import Communicator  # noqa: E402
from ropewalk.window import DeviceMemory, Window  # noqa: E402

SIZES = (8, 1000, 65_536, (1 << 20) + 4, 8 << 20)


def values(rank: int, nbytes: int, turn: int) -> torch.Tensor:
    kind = torch.arange(nbytes, device="cuda", dtype=torch.int64)
    return ((kind * 7 + rank * 13 + turn) % 251).to(torch.uint8)


def part_of(window: Window, rank: int | None = None) -> torch.Tensor:
    memory = window.device_memory(rank)
    assert memory is not None
    return torch.as_tensor(memory, device="cuda")


def neighbours(comm: Communicator) -> tuple[int, int]:
    return (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size


def windows(comm: Communicator) -> list[Window]:
    """One that the library allocates, one in a tensor."""
    own = torch.zeros(SIZES[-1], dtype=torch.uint8, device="cuda")
    return [
        comm.window(SIZES[-1], slots=3, device=torch.cuda.current_device()),
        comm.window(own, slots=3),
    ]


def host(comm: Communicator) -> None:
    """Calls without a stream."""
    right, left = neighbours(comm)
    for window in windows(comm):
        mine = part_of(window)
        for turn, nbytes in enumerate(SIZES):
            source = values(comm.rank, nbytes, turn)
            torch.cuda.synchronize()
            window.put(source if turn % 2 else source.cpu(), right)
            window.signal(right)
            window.wait_signal(left)
            assert torch.equal(mine[:nbytes], values(left, nbytes, turn)), nbytes
            out = np.zeros(nbytes, dtype=np.uint8)
            window.get(out, right)
            assert (out == source.cpu().numpy()).all()
            torch.cuda.synchronize()
            comm.barrier()
        assert window.signals(left) == len(SIZES)
        window.close()


def go_around(
    comm: Communicator, window: Window, arrived: Callable[[int, torch.cuda.Stream], torch.Tensor]
) -> torch.cuda.Stream:
    """All turns are enqueued at once; a slow kernel before each shows that the order is kept.

    `arrived` has the stream copy that many bytes of this rank's part.
    """
    right, left = neighbours(comm)
    stream = torch.cuda.Stream()
    seen = []
    with torch.cuda.stream(stream):
        for turn, nbytes in enumerate(SIZES * 3):
            torch.cuda._sleep(2_000_000 * ((comm.rank + turn) % 2))
            source = values(comm.rank, nbytes, turn)
            window.put_signal(source, right, stream=stream)
            window.wait_signal(left, stream=stream)
            seen.append((arrived(nbytes, stream), values(left, nbytes, turn)))
            window.signal(left, 1, stream=stream)  # it may put again
            window.wait_signal(right, 1, stream=stream)
    stream.synchronize()
    for got, expected in seen:
        assert torch.equal(got, expected), got.numel()
    return stream


def streams(comm: Communicator) -> None:
    """Streams on windows in GPU memory."""
    for window in windows(comm):
        mine = part_of(window)

        def clone(nbytes: int, _: torch.cuda.Stream, mine: torch.Tensor = mine) -> torch.Tensor:
            return mine[:nbytes].clone()

        go_around(comm, window, clone)
        comm.check()
        window.close()


def in_host(comm: Communicator) -> None:
    """Streams on windows in the host's memory: the library's, and a pinned tensor."""
    right, left = neighbours(comm)
    pinned = torch.zeros(SIZES[-1], dtype=torch.uint8, pin_memory=True)
    for window in (comm.window(SIZES[-1], slots=3), comm.window(pinned.numpy(), slots=3)):

        def get_own(
            nbytes: int, stream: torch.cuda.Stream, window: Window = window
        ) -> torch.Tensor:
            out = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
            window.get(out, comm.rank, stream=stream)
            return out

        stream = go_around(comm, window, get_own)
        # A stream's signal for a thread of the host, and the other way round. The host's is of the
        # same counter, so that it has to follow the stream's.
        window.signal(right, 2, stream=stream)
        window.wait_signal(left, 2)
        stream.synchronize()
        window.signal(right, 2)
        window.wait_signal(left, 2, stream=stream)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                window.signal(right, stream=torch.cuda.current_stream())
        except ropewalk.UsageError as error:
            assert "it is captured" in str(error), error
        else:
            raise AssertionError("no error")
        comm.check()
        window.close()


def queues(comm: Communicator) -> None:
    """As many messages as the queue has room for, and longer ones, all enqueued at once."""
    right, left = neighbours(comm)
    sizes = (0, 1, 8, 250, 1000, 65_536, 300_001)
    with comm.queues(65_536, slots=2, device=torch.cuda.current_device()) as there:
        stream = torch.cuda.Stream()
        seen = []
        with torch.cuda.stream(stream):
            for turn, nbytes in enumerate(sizes * 3):
                source = values(comm.rank, nbytes, turn)
                out = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
                # What is longer than the queue is sent while the peer receives.
                if nbytes <= 65_536 or comm.rank % 2 == 0:
                    there.send(source, right, turn % 2, stream=stream)
                    there.receive(out, left, turn % 2, stream=stream)
                else:
                    there.receive(out, left, turn % 2, stream=stream)
                    there.send(source, right, turn % 2, stream=stream)
                seen.append((out, values(left, nbytes, turn)))
        stream.synchronize()
        for got, expected in seen:
            assert torch.equal(got, expected), got.numel()
        comm.check()


def gets(comm: Communicator) -> None:
    right, _ = neighbours(comm)
    for window in windows(comm):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            part_of(window).copy_(values(comm.rank, SIZES[-1], 5))
        stream.synchronize()
        comm.barrier()
        with torch.cuda.stream(stream):
            out = torch.empty(SIZES[-1], dtype=torch.uint8, device="cuda")
            window.get(out, right, stream=stream)
            window.flush(stream=stream)
            same = torch.equal(out, values(right, SIZES[-1], 5))
        assert same
        comm.barrier()
        window.close()


def batches(comm: Communicator) -> None:
    """To and from everybody, twenty launches on one stream, then one by the host."""
    nbytes = 1 << 16
    window = comm.window(nbytes * comm.size, slots=2, device=torch.cuda.current_device())
    source = values(comm.rank, nbytes, 1)
    batch = window.batch()
    for peer in range(comm.size):
        batch.put(source, peer, comm.rank * nbytes).signal(peer)
    for peer in range(comm.size):
        batch.wait_signal(peer)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    for _ in range(20):
        batch.launch(stream=stream)
    stream.synchronize()
    batch.launch()
    for peer in range(comm.size):
        assert window.signals(peer) == 21
        there = part_of(window)[peer * nbytes : (peer + 1) * nbytes]
        assert torch.equal(there, values(peer, nbytes, 1))
    window.close()


def armed(comm: Communicator) -> None:
    """A kernel of PyTorch stores the trigger of what was prepared."""
    right, left = neighbours(comm)
    nbytes = 100_000
    window = comm.window(nbytes, slots=2, device=torch.cuda.current_device())
    source = torch.zeros(nbytes, dtype=torch.uint8, device="cuda")
    batch = window.batch().put(source, right).signal(right)
    stream, other = torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    for turn in range(20):
        trigger = batch.arm(stream)
        window.wait_signal(left, stream=stream)
        assert not stream.query()
        word = torch.as_tensor(DeviceMemory(trigger.address, 8), device="cuda").view(torch.int64)
        with torch.cuda.stream(other):
            source.copy_(values(comm.rank, nbytes, turn))
            word.fill_(trigger.value)
        stream.synchronize()
        assert torch.equal(part_of(window), values(left, nbytes, turn)), turn
        torch.cuda.synchronize()
        window.signal(left, 1)  # it may put again
        window.wait_signal(right, 1)
    comm.check()
    window.close()


def launches(comm: Communicator) -> None:
    """Batches on a stream, of short and long pieces, with other data each time; by turns with the
    host's calls, the stream's own, and a graph on another slot."""
    for nbytes, pieces in ((8, 64), (1000, 10), (999, 150), (65_536, 10), (1 << 20, 3)):
        slot_bytes = nbytes * pieces
        window = comm.window(slot_bytes * comm.size, slots=4, device=torch.cuda.current_device())
        source = torch.zeros(slot_bytes, dtype=torch.uint8, device="cuda")
        batch, ready, again = window.batch(), window.batch(), window.batch()
        for peer in range(comm.size):
            for piece in range(pieces):
                part = source[piece * nbytes : (piece + 1) * nbytes]
                batch.put(part, peer, comm.rank * slot_bytes + piece * nbytes)
            batch.signal(peer)
            ready.signal(peer, 1)
            again.signal(peer, 3)
        for peer in range(comm.size):
            batch.wait_signal(peer)
            ready.wait_signal(peer, 1)
            again.wait_signal(peer, 3)
        stream = torch.cuda.Stream()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            again.launch(stream=stream)
        seen = []
        for turn in range(20):
            with torch.cuda.stream(stream):
                source.copy_(values(comm.rank, slot_bytes, turn))
                batch.launch(stream=stream)
                seen.append(part_of(window).clone())
                if turn % 3 == 0:
                    graph.replay()
                ready.launch(stream=stream)
            if turn % 4 == 0:
                # All three use the same counters.
                stream.synchronize()
                for peer in range(comm.size):
                    window.signal(peer, 1)
                    window.signal(peer, 2, stream=stream)
                for peer in range(comm.size):
                    window.wait_signal(peer, 1, stream=stream)
                    window.wait_signal(peer, 2)
        stream.synchronize()
        for turn, got in enumerate(seen):
            expected = torch.cat([values(r, slot_bytes, turn) for r in range(comm.size)])
            assert torch.equal(got, expected), (nbytes, turn)
        for peer in range(comm.size):
            assert window.signals(peer) == 20
            assert window.signals(peer, 1) == 25
        comm.check()
        comm.barrier()
        window.close()


def lists(comm: Communicator) -> None:
    """Batches in graphs: to and from everybody, of short and long pieces, launched by turns."""
    for nbytes in (1000, 65_536, 1 << 20):
        pieces = 10
        slot_bytes = nbytes * pieces
        window = comm.window(slot_bytes * comm.size, slots=2, device=torch.cuda.current_device())
        source = torch.zeros(slot_bytes, dtype=torch.uint8, device="cuda")
        got = torch.zeros(slot_bytes * comm.size, dtype=torch.uint8, device="cuda")
        batch, ready = window.batch(), window.batch()
        for peer in range(comm.size):
            for piece in range(pieces):
                part = source[piece * nbytes : (piece + 1) * nbytes]
                batch.put(part, peer, comm.rank * slot_bytes + piece * nbytes)
            batch.signal(peer)
            ready.signal(peer, 1)
        for peer in range(comm.size):
            batch.wait_signal(peer)
            ready.wait_signal(peer, 1)
        stream = torch.cuda.Stream()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            batch.launch(stream=stream)
            got.copy_(part_of(window))
            ready.launch(stream=stream)
        for turn in range(20):
            with torch.cuda.stream(stream):
                source.copy_(values(comm.rank, slot_bytes, turn))
                graph.replay()
                expected = torch.cat([values(r, slot_bytes, turn) for r in range(comm.size)])
                same = torch.equal(got, expected)
            assert same, (nbytes, turn)
        comm.check()
        del graph
        comm.barrier()
        window.close()


def graphs(comm: Communicator) -> None:
    """Captured once, launched again and again; what was called before counts on."""
    right, left = neighbours(comm)
    nbytes = 100_000
    window = comm.window(nbytes, slots=3, device=torch.cuda.current_device())
    source = torch.zeros(nbytes, dtype=torch.uint8, device="cuda")
    got = torch.zeros_like(source)
    mine = part_of(window)
    stream = torch.cuda.Stream()

    def exchange() -> None:
        window.put_signal(source, right, stream=stream)
        window.wait_signal(left, stream=stream)
        got.copy_(mine)
        window.signal(left, 1, stream=stream)
        window.wait_signal(right, 1, stream=stream)

    with torch.cuda.stream(stream):
        for _ in range(3):
            exchange()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        exchange()
    for turn in range(30):
        with torch.cuda.stream(stream):
            source.copy_(values(comm.rank, nbytes, turn))
            graph.replay()
            same = torch.equal(got, values(left, nbytes, turn))
        assert same, turn
    comm.check()
    assert window.signals(left) == 33
    try:
        window.signal(right)
    except ropewalk.UsageError as error:
        assert "kernels count these" in str(error), error
    else:
        raise AssertionError("not refused")
    window.signal(right, 2)
    window.wait_signal(left, 2)
    stream.synchronize()
    comm.barrier()
    window.close()


class Gpu(message_programs.Place):
    """A window in GPU memory, used by calls, streams and graphs."""

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        self.lanes = self.kinds(call=True, stream=True, other=True, batch=True, graph=False)
        if HOSTS > 1:
            # A graph cannot learn when what a link gets has arrived.
            self.lanes["graph"] = tuple(each for each in self.lanes["graph"] if each != "get")
        self.window = self.make_window(torch.cuda.current_device())
        nbytes = message_programs.ARENA * len(self.lanes)
        self.arena = torch.zeros(nbytes, dtype=torch.uint8, device="cuda")
        self.streams = {lane: torch.cuda.Stream() for lane in self.lanes if lane != "call"}
        torch.cuda.synchronize()

    def stream(self, lane: str) -> Any:
        return self.streams.get(lane)

    def settle(self) -> None:
        torch.cuda.synchronize()

    def write(self, data: message_programs.Bytes) -> None:
        self.arena.copy_(torch.from_numpy(data))
        torch.cuda.synchronize()

    def read(self) -> message_programs.Bytes:
        return np.asarray(self.arena.cpu())

    def own_part(self) -> message_programs.Bytes:
        return np.asarray(part_of(self.window).cpu())

    def clear(self) -> None:
        part_of(self.window).zero_()
        torch.cuda.synchronize()

    def capture(self, body: Callable[[], None]) -> Callable[[], None]:
        # Not torch.cuda.graph(), which collects garbage each time.
        graph, stream = torch.cuda.CUDAGraph(), self.streams["graph"]
        with torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="thread_local")
            body()
            graph.capture_end()

        def launch() -> None:
            with torch.cuda.stream(stream):
                graph.replay()

        return launch


def random(comm: Communicator) -> None:
    """Programs of the seeds $RW_TEST_SEEDS, FIRST-LAST, against a model that knows every byte."""
    first, last = (int(each) for each in os.environ.get("RW_TEST_SEEDS", "0-199").split("-"))
    began = time.time()
    message_programs.run(Gpu(comm), range(first, last + 1))
    comm.check()
    print(f"{last + 1 - first} programs in {time.time() - began:.1f} s")


def refused(comm: Communicator) -> None:
    right, left = neighbours(comm)
    window = comm.window(100, device=torch.cuda.current_device())
    unpinned = comm.window(np.zeros(100, dtype=np.uint8))
    stream = torch.cuda.Stream()
    tensor = torch.zeros(60, dtype=torch.uint8, device="cuda")

    def expect(kind: type[Exception], words: str, body: Callable[[], Any]) -> None:
        try:
            body()
        except kind as error:
            assert words in str(error), error
        else:
            raise AssertionError(f"not refused: {words}")

    expect(
        ropewalk.ArgumentError,
        "leave the 100 bytes",
        lambda: window.put(tensor, right, 41, stream=stream),
    )
    expect(
        ropewalk.ArgumentError,
        "neither memory of a GPU nor pinned",
        lambda: window.put(np.zeros(8), right, stream=stream),
    )
    expect(
        ropewalk.UsageError,
        "memory that is not pinned",
        lambda: unpinned.put(tensor, comm.rank, stream=stream),
    )
    window.wait_signal(left, stream=stream)
    expect(ropewalk.UsageError, "a stream has not done yet", window.close)
    comm.barrier()
    window.signal(right)
    stream.synchronize()
    time.sleep(0.1)
    window.close()
    unpinned.close()


def until_lost(comm: Communicator) -> None:
    """Waits in a stream for what never comes, until rank 1 is killed.

    By the driver, a batch's kernel, or that of a CUDA graph, as the second argument says.
    """
    window = comm.window(100, device=torch.cuda.current_device())
    stream = torch.cuda.Stream()
    peer = (comm.rank + 1) % comm.size
    waiter = sys.argv[2]
    comm.barrier()
    if waiter == "driver":
        window.wait_signal(peer, stream=stream)
    else:
        # Of two signals that it waits for, one comes.
        batch = window.batch().put(torch.ones(8, device="cuda"), peer)
        batch.signal(peer).wait_signal(peer, count=2)
        if waiter == "graph":
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                batch.launch(stream=stream)
            with torch.cuda.stream(stream):
                graph.replay()
        else:
            batch.launch(stream=stream)
    print("waiting", flush=True)
    stream.synchronize()
    at = time.time()
    try:
        comm.barrier()
    except ropewalk.Error as error:
        print(f"{type(error).__name__} at {at}: {error}", flush=True)
    comm.abort()
    sys.exit(0)


def deadline(comm: Communicator) -> None:
    window = comm.window(100, device=torch.cuda.current_device())
    stream = torch.cuda.Stream()
    comm.barrier()
    began = time.time()
    if comm.rank == 0:
        window.wait_signal(1, stream=stream)
        stream.synchronize()
        assert 3.9 < time.time() - began < 6, time.time() - began
        try:
            window.signal(1)
        except ropewalk.TimeoutError as error:
            assert "a stream has waited" in str(error), error
        else:
            raise AssertionError("no error")
    else:
        try:
            while True:
                comm.check()
                time.sleep(0.01)
        except ropewalk.PeerLostError:
            pass
    comm.abort()


PARTS: dict[str, Callable[[Communicator], None]] = {
    function.__name__: function
    for function in (
        *(host, streams, in_host, queues, gets, batches, armed, launches, lists),
        *(graphs, random, refused, until_lost, deadline),
    )
}


def main() -> None:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    # Kernels are loaded before any stream waits.
    for turn in range(2):
        values(0, 1000, turn).clone().equal(values(0, 1000, turn))
    with ropewalk.init() as comm:
        PARTS[sys.argv[1]](comm)
    print("all done")


if __name__ == "__main__":
    main()
