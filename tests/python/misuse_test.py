"""A communicator that two threads use at once, and calls that differ between ranks."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
import ropewalk
from conftest import run_ranks
from ropewalk.communicator import Communicator


@pytest.mark.parametrize(
    "call",
    [
        lambda comm: comm.all_reduce(np.ones(2)),
        lambda comm: comm.all_reduce(np.ones(2), blocking=False),
        lambda comm: comm.recv(np.ones(2), peer=1),
        lambda comm: comm.barrier(),
        lambda comm: comm.use_schedule(None),
        lambda comm: comm.finalize(),
    ],
)
def test_a_second_thread_is_refused_and_the_first_goes_on(call: Any) -> None:
    comms = ropewalk.init_all(2)
    got = np.zeros(3)
    entered = threading.Event()

    def first() -> None:
        entered.set()
        comms[0].recv(got, peer=1)

    thread = threading.Thread(target=first)
    thread.start()
    entered.wait(30)
    time.sleep(0.3)  # the call is within the library
    with pytest.raises(ropewalk.UsageError, match=r"rank 0 is in a call.*by another thread"):
        call(comms[0])
    comms[1].send(np.full(3, 5.0), peer=0)
    thread.join(30)
    assert got.tolist() == [5, 5, 5]
    # Both are whole.
    run_ranks(comms, lambda comm: comm.all_reduce(np.ones(2)))
    for comm in comms:
        comm.finalize()


def test_threads_that_share_a_communicator_get_an_error() -> None:
    """Never an error about differing calls without a field that differs."""
    comms = ropewalk.init_all(2)
    said: list[str] = []
    told = threading.Event()

    def body(comm: Communicator) -> None:
        try:
            while not told.is_set():
                comm.all_reduce(np.ones(4))
        except ropewalk.Error as error:
            said.append(str(error))
            told.set()

    threads = [threading.Thread(target=body, args=(comm,)) for comm in comms for _ in range(2)]
    for thread in threads:
        thread.start()
    assert told.wait(30)
    first = said[0]
    for comm in comms:
        comm.abort()  # whoever still waits for the other rank
    for thread in threads:
        thread.join(30)
    assert "another thread" in first or "two threads" in first, said
    assert not any("()" in text for text in said), said


def test_a_barrier_is_called_one() -> None:
    texts: list[str] = []

    def body(comm: Communicator) -> None:
        with comm, pytest.raises(ropewalk.Error) as caught:
            if comm.rank == 0:
                comm.barrier()
            else:
                comm.all_reduce(np.ones(1, np.float32))
        texts.append(str(caught.value))

    run_ranks(ropewalk.init_all(2), body)
    assert any(
        "(operation)" in text and "call 1: barrier" in text and "all_reduce of 1 float32" in text
        for text in texts
    ), texts
