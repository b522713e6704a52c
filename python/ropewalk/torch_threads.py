"""Threads that run a process group's operations in order, and threads that end futures."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Callable, Optional

Job = Callable[[], None]


class Worker:
    """Runs jobs one after the other in a thread of its own, which the first one starts.

    The thread ends after the jobs that were put when the Worker is closed or gone, or the program
    ends. Jobs raise nothing.

    Threads: any.
    """

    def __init__(self, name: str) -> None:
        """`name` is the thread's."""
        self._queue = _Queue(name)
        _queues.add(self._queue)
        self._close = weakref.finalize(self, self._queue.close)
        self._close.atexit = False  # _end_all does it, earlier

    def put(self, job: Job) -> None:
        """Runs `job` after those that were put before.

        Raises:
            RuntimeError: after `close`, and when the program ends.
        """
        self._queue.put(job)

    def close(self) -> None:
        """Takes no more jobs. Does not wait."""
        self._close()


class _Queue:
    """The jobs of a Worker. One thread at a time attends to them."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[Optional[Job]] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._changing = threading.Lock()
        # The seat of the thread that attends, and whether that thread is away from it: the next job
        # needs another one then.
        self._taken_by: Optional[_Seat] = None
        self._away = False
        self._spare: Optional[_Seat] = None  # of a thread that waits to be needed

    def put(self, job: Job) -> None:
        with self._changing:
            if self._closed:
                raise RuntimeError(f"{self._name}: a job after the end")
            self._jobs.put(job)
            if self._away or self._taken_by is None:
                self._seat_another()

    def _seat_another(self) -> None:
        self._away = False
        if self._spare is not None:
            self._taken_by, self._spare = self._spare, None
            self._taken_by.needed.release()
            return
        self._taken_by = seat = _Seat(self)
        thread = threading.Thread(target=self._attend, args=(seat,), name=self._name, daemon=True)
        self._threads = [one for one in self._threads if one.is_alive()]
        self._threads.append(thread)
        thread.start()

    def _attend(self, seat: _Seat) -> None:
        _here.seat = seat
        take = self._jobs.get
        while True:
            while self._taken_by is seat:
                job = take()
                if job is None:
                    return
                job()
                del job  # what it holds may be large
            with self._changing:
                if self._closed or self._spare is not None:
                    return
                self._spare = seat
            seat.needed.acquire()

    def leave(self) -> bool:
        with self._changing:
            if not self._jobs.empty():
                return False
            self._away = True
        _here.seat = None
        return True

    def come_back(self, seat: _Seat) -> None:
        with self._changing:
            if self._taken_by is seat:
                self._away = False
        _here.seat = seat

    def close(self) -> None:
        with self._changing:
            if self._closed:
                return
            self._closed = True
            self._jobs.put(None)
            if self._spare is not None:
                self._spare.needed.release()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def forget(self) -> None:
        """In a forked child, which has none of the threads."""
        self._changing = threading.Lock()
        self._threads = []
        self._closed = True


class _Seat:
    """A thread that attends to a queue of jobs, did so, or will."""

    def __init__(self, queue: _Queue) -> None:
        self._queue = queue
        self.needed = threading.Lock()
        self.needed.acquire()

    def leave(self) -> bool:
        """Lets another thread attend to what is put from now on. Called by the thread itself.

        Returns:
            Whether it does: not while jobs wait.
        """
        return self._queue.leave()

    def come_back(self) -> None:
        """Ends that: the thread attends again, unless another one has come meanwhile."""
        self._queue.come_back(self)


class Settler:
    """Ends futures in the order of their operations.

    A future's callbacks run where it is ended, and may wait for other operations and their futures.
    One thread at a time ends futures; when a callback waits for an operation, or holds up the
    others for PATIENCE_SECONDS, another thread goes on. A Worker's thread with no more jobs does it
    itself, which saves waking another one; if jobs come meanwhile, they get another thread.
    """

    PATIENCE_SECONDS = 0.02
    MOST_THREADS = 256  # of callbacks that wait at the same time

    def __init__(self) -> None:
        """Starts no thread yet."""
        self._threads = ThreadPoolExecutor(self.MOST_THREADS, "ropewalk futures")
        self._changing = threading.Lock()
        self._jobs: deque[Job] = deque()
        self._at_work: Optional[object] = None  # whose turn it is
        self._watched = False

    def put(self, job: Job) -> None:
        """Runs `job` after those that were put before; perhaps now, in the calling thread."""
        seat: Optional[_Seat] = getattr(_here, "seat", None)
        turn = None
        if seat is not None and seat.leave():
            turn = object()
        with self._changing:
            if turn is not None and self._at_work is None:
                self._at_work = turn
            else:
                turn = None
                self._jobs.append(job)
                if self._at_work is None:
                    self._start()
                elif not self._watched:
                    self._watched = True
                    self._threads.submit(self._watch)
        if turn is not None:
            _here.turn = turn
            job()
            self._work(turn)
        if seat is not None:
            seat.come_back()

    def step_aside(self) -> None:
        """Called by a callback that is about to wait: another thread goes on with the others."""
        turn = getattr(_here, "turn", None)
        if turn is not None:
            with self._changing:
                self._pass_on(turn)

    def _start(self) -> None:
        self._at_work = turn = object()
        self._threads.submit(self._work, turn)

    def _pass_on(self, turn: object) -> None:
        if self._at_work is turn:
            self._at_work = None
            if self._jobs:
                self._start()

    def _work(self, turn: object) -> None:
        _here.turn = turn
        while True:
            with self._changing:
                if self._at_work is not turn:
                    break
                if not self._jobs:
                    self._at_work = None
                    break
                job = self._jobs.popleft()
            job()
        _here.turn = None

    def _watch(self) -> None:
        while True:
            with self._changing:
                turn, waiting = self._at_work, len(self._jobs)
                if turn is None or not waiting:
                    self._watched = False
                    return
                first = self._jobs[0]
            time.sleep(self.PATIENCE_SECONDS)
            with self._changing:
                if self._jobs and self._jobs[0] is first:
                    self._pass_on(turn)


settler = Settler()

_here = threading.local()  # the thread's .seat at a queue, its .turn to end futures
_queues: weakref.WeakSet[_Queue] = weakref.WeakSet()


def _end_all() -> None:
    """As the standard library's executors do: before the program's end goes on, jobs are done."""
    queues = list(_queues)
    for queue in queues:
        queue.close()
    for queue in queues:
        queue.join()


def _forget_all() -> None:
    for queue in list(_queues):
        queue.forget()


# Before atexit's functions, among which communicators leave, and before threads are waited for.
getattr(threading, "_register_atexit", atexit.register)(_end_all)
os.register_at_fork(after_in_child=_forget_all)
