"""A communicator belongs to its process: forked children have none, and nothing is pickled."""

from __future__ import annotations

import copy
import pickle
import textwrap
from typing import Any

import numpy as np
import pytest
import ropewalk
from running import run_script

COMMON = """
import os, sys, threading, time
import numpy as np
import ropewalk

def in_child(body):
    \"\"\"Forks; the child must end in time, with status 0.\"\"\"
    pid = os.fork()
    if pid == 0:
        body()
        sys.exit(0)
    until = time.monotonic() + 30
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            assert status == 0, status
            return
        time.sleep(0.01)
    os.kill(pid, 9)
    raise SystemExit("the child hangs")

def works(comms):
    arrays = [np.ones(5) for _ in comms]
    with ropewalk.group():
        for comm, array in zip(comms, arrays):
            comm.all_reduce(array)
    assert all((array == len(comms)).all() for array in arrays)
"""


def run(script: str) -> None:
    run_script(COMMON + textwrap.dedent(script))


def test_a_child_that_only_ends() -> None:
    run("""
        comm = ropewalk.init()
        in_child(lambda: None)
        works([comm])
    """)


def test_a_child_that_ends_within_a_block() -> None:
    run("""
        with ropewalk.init() as comm:
            if os.fork() == 0:
                sys.exit(7)  # leaves the block by an exception
            assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
            works([comm])
    """)


def test_every_use_in_a_child_is_refused() -> None:
    run("""
        comms = ropewalk.init_all(2)
        comm, array = comms[0], np.ones(3)
        operator = comm.pre_mul_sum(2, "float64")
        pending = comm.recv(np.zeros(3), peer=1, blocking=False)
        parent = os.getpid()

        def body():
            uses = [
                lambda: comm.all_reduce(array),
                lambda: comm.all_reduce(array, operator),
                lambda: comm.all_reduce(array, blocking=False),
                lambda: comm.send(array, peer=1),
                comm.barrier,
                comm.check,
                lambda: comm.split(0),
                lambda: comm.use_schedule(None),
                lambda: comm.attach(0),
                lambda: comm.pre_mul_sum(2, "float64"),
                comm.finalize,
                comm.abort,
                pending.wait,
                pending.done,
            ]
            for i, use in enumerate(uses):
                try:
                    use()
                except ropewalk.UsageError as error:
                    assert f"belongs to process {parent}" in str(error), error
                else:
                    raise SystemExit(f"use {i} was not refused")
            assert (comm.rank, comm.size) == (0, 2)
            assert f"of process {parent}" in repr(comm)

        in_child(body)
        comms[1].send(array, peer=0)
        assert pending.wait(30).tolist() == [1, 1, 1]
        works(comms)
    """)


def test_a_child_joins_jobs_of_its_own() -> None:
    run("""
        ropewalk.settings.set("TIMEOUT", "33s")
        comms = ropewalk.init_all(2)

        def value(name):
            return next(row["value"] for row in ropewalk.settings.describe() if row["name"] == name)

        def body():
            assert value("ROPEWALK_TIMEOUT") == "33s"
            own = ropewalk.init_all(3)
            works(own)
            in_child(lambda: works(ropewalk.init_all(2)))
            works(own)
            for comm in own:
                comm.finalize()

        in_child(body)
        works(comms)
    """)


def test_two_children_join_each_other() -> None:
    run("""
        comm = ropewalk.init()
        secret = ropewalk.unique_id()  # its meeting place is in this process

        def body(rank):
            with ropewalk.init(unique_id=secret, rank=rank, size=2) as own:
                assert own.all_reduce(np.float64(1)) == 2

        pids = []
        for rank in range(2):
            pids.append(os.fork())
            if pids[-1] == 0:
                body(rank)
                sys.exit(0)
        assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 0]
        works([comm])
    """)


@pytest.mark.parametrize("links", ["auto", "network"])
def test_peers_in_other_processes_notice_nothing(links: str) -> None:
    run(f"""
        ropewalk.settings.set("LINKS", "{links}")
        secret = ropewalk.unique_id()
        other = os.fork()
        # The parent keeps the meeting place; it has no communicator yet.
        with ropewalk.init(unique_id=secret, rank=int(other == 0), size=2) as comm:
            ended = []
            for turn in range(6):
                assert comm.all_reduce(np.float64(turn)) == 2 * turn
                handle = comm.all_reduce(np.ones(100_000), blocking=False)
                child = os.fork()
                if child == 0:
                    if turn % 2:
                        sys.exit(0)
                    time.sleep(1)  # outlives what follows
                    os._exit(0)
                assert handle.wait(30)[0] == 2
                ended.append(child)
            for child in ended:
                assert os.waitpid(child, 0)[1] == 0
            assert comm.all_reduce(np.float64(1)) == 2
        if other:
            assert os.waitpid(other, 0)[1] == 0
    """)


def test_a_fork_in_a_thread_while_others_work() -> None:
    run("""
        comms = ropewalk.init_all(2)
        stop = threading.Event()

        def busy(comm):
            while not comm.all_reduce(np.float64(stop.is_set())):
                pass

        threads = [threading.Thread(target=busy, args=(comm,)) for comm in comms]

        def forks():
            for _ in range(20):
                in_child(lambda: None)
            stop.set()

        threads.append(threading.Thread(target=forks))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        works(comms)
    """)


def test_multiprocessing_by_fork() -> None:
    run("""
        import multiprocessing

        comm = ropewalk.init()

        def body(given, answers):
            try:
                given.all_reduce(np.ones(2))
            except ropewalk.UsageError as error:
                answers.put(str(error))

        context = multiprocessing.get_context("fork")
        answers = context.Queue()
        child = context.Process(target=body, args=(comm, answers))
        child.start()
        assert "forked from it" in answers.get(timeout=30)
        child.join(30)
        assert child.exitcode == 0
        with context.Pool(2) as pool:
            assert pool.map(abs, [-1, -2]) == [1, 2]
        works([comm])
    """)


def test_workers_of_a_data_loader() -> None:
    pytest.importorskip("torch")
    run("""
        import torch
        from torch.utils.data import DataLoader, Dataset

        comm = ropewalk.init()

        class Numbers(Dataset):
            def __init__(self):
                self.comm = comm

            def __len__(self):
                return 4

            def __getitem__(self, i):
                try:
                    self.comm.barrier()
                except ropewalk.UsageError:
                    return torch.tensor(i)

        loader = DataLoader(Numbers(), num_workers=2, multiprocessing_context="fork")
        assert sorted(int(batch) for batch in loader) == [0, 1, 2, 3]
        works([comm])
    """)


@pytest.fixture
def alone() -> Any:
    with ropewalk.init_all(1)[0] as comm:
        yield comm


@pytest.mark.parametrize("take", [pickle.dumps, copy.copy, copy.deepcopy])
def test_nothing_is_pickled_or_copied(alone: Any, take: Any) -> None:
    handle = alone.all_reduce(np.ones(2), blocking=False)
    handle.wait(60)
    for given in (alone, handle, alone.pre_mul_sum(2, "float32")):
        with pytest.raises(TypeError, match="cannot be pickled or copied") as caught:
            take(given)
        assert isinstance(caught.value, ropewalk.UsageError)


def test_a_registration_is_not_pickled(alone: Any) -> None:
    made = ropewalk.Registration(alone, None)
    with pytest.raises(ropewalk.NotCopiedError, match="a Registration belongs to"):
        pickle.dumps(made)
