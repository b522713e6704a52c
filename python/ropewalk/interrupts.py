"""Signals during calls that wait: Ctrl-C ends them, and other handlers run meanwhile.

The interpreter runs handlers of signals in its main thread, between two of its own instructions,
which a C library's long call holds up. So the library asks ten times a second, in the main thread
(rwSetInterruptCheck). What it calls is a generator, in which handlers run; what one raises ends the
library's call and is raised from there.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
from collections.abc import Generator
from typing import Any, Final, Optional

GO_ON: Final = 0
END: Final = 1

Check = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)

_enabled = False
_raised: Optional[BaseException] = None


def _answers() -> Generator[int, Any, None]:
    # Resumed within the `try`, where a handler's exception can be caught: handlers also run at a
    # function's first instruction, which lies before any `try` of its own.
    global _raised
    answer = GO_ON
    while True:
        try:
            while True:
                yield answer
                answer = GO_ON
        except GeneratorExit:  # the interpreter ends
            return
        except BaseException as error:  # whatever a handler raises
            _raised = error
            answer = END


_generator: Final = _answers()
next(_generator)
_check: Final = Check(_generator.send)


def enable(library: ctypes.CDLL) -> None:
    """Lets the library ask in the main thread; does nothing in others, which run no handlers."""
    global _enabled
    if _enabled or threading.current_thread() is not threading.main_thread():
        return
    library.rwSetInterruptCheck(_check, None)
    atexit.register(library.rwSetInterruptCheck, Check(), None)
    _enabled = True


def _forget() -> None:
    """For a forked child, whose main thread may be another one."""
    global _enabled, _raised
    _enabled, _raised = False, None


os.register_at_fork(after_in_child=_forget)


def reraise() -> None:
    """Raises the exception of a handler during this thread's call, if any."""
    global _raised
    if _raised is None or threading.current_thread() is not threading.main_thread():
        return
    error, _raised = _raised, None
    raise error
