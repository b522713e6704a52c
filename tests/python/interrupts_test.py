"""Signals that come while a call waits for other ranks."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest
from running import free_port, run_script

# `later(f)`: f in 0.3 s, in another thread. SIGINT may be ignored where the tests run.
COMMON = """
import os, signal, threading, time
import numpy
import ropewalk

signal.signal(signal.SIGINT, signal.default_int_handler)
begin = time.monotonic()

def later(function, *arguments):
    threading.Timer(0.3, function, arguments).start()

def press(number=signal.SIGINT):
    os.kill(os.getpid(), number)

def ones():
    return numpy.ones(4, dtype="float32")

def in_time():
    assert time.monotonic() - begin < 20
"""


def run(script: str) -> None:
    """Runs a program in a process of its own; it must end well and say nothing."""
    run_script(COMMON + textwrap.dedent(script))


def test_ctrl_c_ends_an_operation() -> None:
    run("""
        mine, other = ropewalk.init_all(2)
        later(press)
        try:
            mine.all_reduce(ones())
            raise SystemExit("not interrupted")
        except KeyboardInterrupt:
            in_time()
        try:
            mine.all_reduce(ones())
            raise SystemExit("not broken")
        except ropewalk.InterruptedError as error:
            assert isinstance(error, InterruptedError)
            assert "rank 0 was interrupted by its program" in str(error), error
        try:
            while True:  # the first may have come from rank 0 before
                other.all_reduce(ones())
        except ropewalk.PeerLostError as error:
            assert "rank 0" in str(error) and "interrupted" in str(error), error
    """)


LOADED_BY_A_THREAD = """
thread = threading.Thread(target=ropewalk.unique_id)
thread.start()
thread.join()
"""
WITH_UNIQUE_ID = "unique_id=ropewalk.unique_id(), rank=0, size=2"
# The other rank never comes.
LAUNCHED = """
secret = "{folder}/secret"
with open(secret, "w") as out:
    out.write("0123456789abcdef" * 2)
os.chmod(secret, 0o600)
os.environ.update(
    ROPEWALK_RANK="{rank}", ROPEWALK_WORLD_SIZE="2", ROPEWALK_RENDEZVOUS="{where}",
    ROPEWALK_SECRET_FILE=secret,
)
"""


def ends_joining(before: str, arguments: str) -> None:
    run(
        before
        + f"""
later(press)
try:
    ropewalk.init({arguments})
    raise SystemExit("not interrupted")
except KeyboardInterrupt:
    in_time()
"""
    )


@pytest.mark.parametrize("before", ["", LOADED_BY_A_THREAD], ids=["", "loaded by another thread"])
def test_ctrl_c_ends_joining(before: str) -> None:
    ends_joining(before, WITH_UNIQUE_ID)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("kind", ["local", "file", "tcp"])
def test_ctrl_c_ends_joining_a_launchers_job(tmp_path: Path, kind: str, rank: int) -> None:
    where = {
        "local": f"local:{tmp_path.name}-{os.getpid()}",
        "file": f"file:{tmp_path}/id",
        "tcp": f"tcp://127.0.0.1:{free_port()}",
    }[kind]
    ends_joining(LAUNCHED.format(folder=tmp_path, rank=rank, where=where), "")


def test_ctrl_c_ends_a_wait_and_leaves_the_operation() -> None:
    run("""
        mine, other = ropewalk.init_all(2)
        array = ones()
        handle = mine.all_reduce(array, blocking=False)
        later(press)
        try:
            handle.wait()
            raise SystemExit("not interrupted")
        except KeyboardInterrupt:
            in_time()
        other.all_reduce(ones())
        assert (handle.wait() == 2).all()
        other.abort()
    """)


def test_ctrl_c_in_a_block_notifies_the_others() -> None:
    run("""
        mine, other = ropewalk.init_all(2)
        later(press)
        try:
            with mine:
                mine.barrier()
        except KeyboardInterrupt:
            in_time()
        assert mine.closed
        try:
            while True:
                other.barrier()
        except ropewalk.PeerLostError:
            pass
    """)


def test_a_handler_that_raises_nothing_runs_meanwhile() -> None:
    run("""
        seen = []
        def note(number, frame):
            seen.append(time.monotonic() - begin)
            if len(seen) == 12:
                threading.Thread(target=other.all_reduce, args=(ones(),)).start()
        signal.signal(signal.SIGALRM, note)
        mine, other = ropewalk.init_all(2)
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
        assert (mine.all_reduce(ones()) == 2).all()
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert len(seen) >= 12
        other.abort()
        in_time()
    """)


def test_an_exception_of_a_handler_is_raised() -> None:
    run("""
        class Stop(Exception):
            pass
        def stop(number, frame):
            raise Stop(number)
        signal.signal(signal.SIGTERM, stop)
        mine, other = ropewalk.init_all(2)
        later(press, signal.SIGTERM)
        try:
            mine.recv(ones(), 1)
            raise SystemExit("not stopped")
        except Stop as error:
            assert error.args == (signal.SIGTERM,)
            in_time()
        other.abort()
    """)


def test_a_handler_must_not_use_a_communicator() -> None:
    run("""
        def use(number, frame):
            mine.all_reduce(ones())
        signal.signal(signal.SIGTERM, use)
        mine, other = ropewalk.init_all(2)
        later(press, signal.SIGTERM)
        try:
            mine.all_reduce(ones())
            raise SystemExit("not refused")
        except ropewalk.UsageError as error:
            assert "signal's handler" in str(error), error
            in_time()
        other.abort()
    """)


def test_other_threads_go_on() -> None:
    run("""
        first = ropewalk.init_all(2)
        second = ropewalk.init_all(2)
        results = []
        thread = threading.Thread(target=lambda: results.append(second[0].all_reduce(ones())))
        thread.start()
        later(press)
        try:
            first[0].all_reduce(ones())
            raise SystemExit("not interrupted")
        except KeyboardInterrupt:
            in_time()
        second[1].all_reduce(ones())
        thread.join()
        assert (results[0] == 2).all()
        first[1].abort()
        for comm in second:
            comm.abort()
    """)
