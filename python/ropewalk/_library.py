"""The C library: where it is, the prototypes of its public headers, and its handles.

ctypes releases the interpreter lock around every call, so that ranks may be threads.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import re
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Optional, TypeVar

from ropewalk import errors, interrupts

UNIQUE_ID_BYTES = 128

Comm = ctypes.c_void_p
Request = ctypes.c_void_p
Stream = ctypes.c_void_p
Window = ctypes.c_void_p
MessageWindow = ctypes.c_void_p
Batch = ctypes.c_void_p


class OwnedHandle(ctypes.c_void_p):
    """A handle of the library that is freed with this object; NULL until `made` fills it.

    What it points to never changes, and belongs to no process: any thread may use it, and a forked
    child has its own. As an argument it lives until the call returns.
    """

    # Set when the library is loaded, before which there is no handle. Here, so that it is still
    # there when the interpreter ends, whose modules are emptied before the last objects go.
    free: ClassVar[Any] = None

    def __del__(self) -> None:
        """Frees it."""
        if self.value is not None:
            self.free(self)

    def __reduce__(self) -> NoReturn:
        """Refuses pickle and copy, since a copy would free the handle twice."""
        raise errors.NotCopiedError(
            f"a {type(self).__name__} cannot be pickled or copied; the object that holds it can"
        )


class TopologyHandle(OwnedHandle):
    """rwTopology_t."""


class PlanHandle(OwnedHandle):
    """rwPlan_t."""


class UniqueIdStruct(ctypes.Structure):
    """rwUniqueId."""

    _fields_ = [("internal", ctypes.c_char * UNIQUE_ID_BYTES)]


class DeviceTrigger(ctypes.Structure):
    """rwDeviceTrigger."""

    _fields_ = [("word", ctypes.c_void_p), ("value", ctypes.c_uint64)]


class MeasureSpec(ctypes.Structure):
    """rwMeasureSpec_t."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("collective", ctypes.c_char_p),
        ("count", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("op", ctypes.c_int),
        ("root", ctypes.c_int),
        ("in_place", ctypes.c_int),
        ("warmup", ctypes.c_int),
        ("iterations", ctypes.c_int),
        ("operations", ctypes.c_int),
        ("check", ctypes.c_int),
        ("barrier", ctypes.c_int),
        ("unalign", ctypes.c_size_t),
        ("iteration_seconds", ctypes.POINTER(ctypes.c_double)),
        ("device", ctypes.c_int),
        ("graphs", ctypes.c_int),
        ("registered", ctypes.c_int),
        ("region", ctypes.c_size_t),
        ("period", ctypes.c_size_t),
    ]


class MeasureResult(ctypes.Structure):
    """rwMeasureResult_t."""

    _fields_ = [
        ("seconds_avg", ctypes.c_double),
        ("seconds_min", ctypes.c_double),
        ("seconds_max", ctypes.c_double),
        ("seconds_rank0", ctypes.c_double),
        ("wrong", ctypes.c_uint64),
        ("algorithm", ctypes.c_char * 32),
    ]


_INT = ctypes.c_int
_SIZE = ctypes.c_size_t
_POINTER = ctypes.c_void_p
_TEXT = ctypes.c_char_p
_INT_OUT = ctypes.POINTER(ctypes.c_int)
_COMM_OUT = ctypes.POINTER(Comm)
_TEXT_OUT = ctypes.POINTER(ctypes.c_void_p)  # not c_char_p: the address is needed to free it
_REQUEST_OUT = ctypes.POINTER(Request)
_TOPOLOGY_OUT = ctypes.POINTER(TopologyHandle)
_PLAN_OUT = ctypes.POINTER(PlanHandle)
_DOUBLES = ctypes.POINTER(ctypes.c_double)
_WINDOW_OUT = ctypes.POINTER(MessageWindow)
_SIZE_OUT = ctypes.POINTER(ctypes.c_size_t)
_COUNT = ctypes.c_uint64
_START = (Comm, Stream, _REQUEST_OUT)  # how the arguments of every operation end

# Everything below returns rwResult_t.
_PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "rwGetVersion": (_INT_OUT,),
    "rwRedOpCreatePreMulSum": (_INT_OUT, _POINTER, _INT, Comm),
    "rwRedOpDestroy": (_INT, Comm),
    "rwGetUniqueId": (ctypes.POINTER(UniqueIdStruct),),
    "rwCommInitRank": (_COMM_OUT, _INT, UniqueIdStruct, _INT),
    "rwCommInitEnv": (_COMM_OUT,),
    "rwCommInitAll": (_COMM_OUT, _INT),
    "rwCommInitEnvRanks": (_COMM_OUT, _INT),
    "rwCommSplit": (Comm, _INT, _INT, _COMM_OUT),
    "rwCommCount": (Comm, _INT_OUT),
    "rwCommUserRank": (Comm, _INT_OUT),
    "rwCommFinalize": (Comm,),
    "rwCommDestroy": (Comm,),
    "rwCommAbort": (Comm,),
    "rwCommGetAsyncError": (Comm, _INT_OUT),
    "rwSetInterruptCheck": (interrupts.Check, _POINTER),
    "rwCommAttachDevice": (Comm, _INT),
    "rwCommWindowRegister": (Comm, _POINTER, _SIZE, ctypes.POINTER(Window)),
    "rwCommWindowRegisterSymmetric": (Comm, _POINTER, _SIZE, ctypes.POINTER(Window)),
    "rwCommWindowDeregister": (Comm, Window),
    "rwWindowCreate": (Comm, _SIZE, _INT, _WINDOW_OUT),
    "rwWindowCreateOn": (Comm, _INT, _SIZE, _INT, _WINDOW_OUT),
    "rwWindowCreateQueues": (Comm, _INT, _SIZE, _INT, _WINDOW_OUT),
    "rwQueueSend": (_POINTER, _SIZE, _INT, _INT, MessageWindow, Stream),
    "rwQueueReceive": (_POINTER, _SIZE, _INT, _INT, MessageWindow, Stream),
    "rwWindowRegister": (Comm, _POINTER, _SIZE, _INT, _WINDOW_OUT),
    "rwWindowFree": (MessageWindow,),
    "rwWindowMemory": (MessageWindow, _INT, ctypes.POINTER(_POINTER), _SIZE_OUT),
    "rwWindowDescriptor": (MessageWindow, _INT, _INT_OUT, _SIZE_OUT),
    "rwPut": (_POINTER, _SIZE, _INT, _SIZE, MessageWindow, Stream, _REQUEST_OUT),
    "rwGet": (_POINTER, _SIZE, _INT, _SIZE, MessageWindow, Stream, _REQUEST_OUT),
    "rwSignal": (_INT, _INT, _COUNT, MessageWindow, Stream, _REQUEST_OUT),
    "rwPutSignal": (_POINTER, _SIZE, _INT, _SIZE, _INT, MessageWindow, Stream, _REQUEST_OUT),
    "rwWaitSignal": (_INT, _INT, _COUNT, MessageWindow, Stream, _REQUEST_OUT),
    "rwSignalCount": (_INT, _INT, MessageWindow, ctypes.POINTER(_COUNT)),
    "rwFlush": (_INT, MessageWindow, Stream, _REQUEST_OUT),
    "rwBatchCreate": (Comm, ctypes.POINTER(Batch)),
    "rwBatchFree": (Batch,),
    "rwBatchPut": (Batch, _POINTER, _SIZE, _INT, _SIZE, MessageWindow),
    "rwBatchGet": (Batch, _POINTER, _SIZE, _INT, _SIZE, MessageWindow),
    "rwBatchSignal": (Batch, _INT, _INT, _COUNT, MessageWindow),
    "rwBatchWaitSignal": (Batch, _INT, _INT, _COUNT, MessageWindow),
    "rwBatchFlush": (Batch, _INT, MessageWindow),
    "rwBatchLaunch": (Batch, Stream, _REQUEST_OUT),
    "rwBatchArm": (Batch, Stream, ctypes.POINTER(DeviceTrigger)),
    "rwCommDevice": (Comm, _INT_OUT),
    "rwCommDeviceMemory": (Comm, ctypes.POINTER(ctypes.c_size_t)),
    "rwDeviceCount": (_INT_OUT,),
    "rwDeviceDescribe": (_INT, _TEXT_OUT),
    "rwStreamMark": (_INT, Stream, _REQUEST_OUT),
    "rwRequestWait": (Request, ctypes.c_int64),
    "rwRequestFree": (Request,),
    "rwAllReduce": (_POINTER, _POINTER, _SIZE, _INT, _INT, *_START),
    "rwBroadcast": (_POINTER, _POINTER, _SIZE, _INT, _INT, *_START),
    "rwReduce": (_POINTER, _POINTER, _SIZE, _INT, _INT, _INT, *_START),
    "rwAllGather": (_POINTER, _POINTER, _SIZE, _INT, *_START),
    "rwReduceScatter": (_POINTER, _POINTER, _SIZE, _INT, _INT, *_START),
    "rwAllToAll": (_POINTER, _POINTER, _SIZE, _INT, *_START),
    "rwGather": (_POINTER, _POINTER, _SIZE, _INT, _INT, *_START),
    "rwScatter": (_POINTER, _POINTER, _SIZE, _INT, _INT, *_START),
    "rwSendRecv": (_POINTER, _POINTER, _SIZE, _INT, *_START),
    "rwBarrier": (Comm,),
    "rwSend": (_POINTER, _SIZE, _INT, _INT, *_START),
    "rwRecv": (_POINTER, _SIZE, _INT, _INT, *_START),
    "rwGroupStart": (),
    "rwGroupEnd": (),
    "rwScheduleMake": (_TEXT, _TEXT, _INT, _INT, _INT, _TEXT_OUT),
    "rwScheduleMakeOnHosts": (_TEXT, _TEXT, _INT, _INT, _INT, _INT_OUT, _TEXT_OUT),
    "rwScheduleMicrobench": (_TEXT, _TEXT, _INT, _INT, _TEXT_OUT),
    "rwScheduleFromPlan": (PlanHandle, _TEXT_OUT),
    "rwSimulatePlan": (PlanHandle, _TEXT, _TEXT_OUT),
    "rwSimulateSchedule": (_TEXT, TopologyHandle, _TEXT, _TEXT_OUT),
    "rwNicReport": (TopologyHandle, _TEXT, _TEXT_OUT),
    "rwScheduleCheck": (_TEXT, _TEXT_OUT),
    "rwScheduleAlgorithms": (_TEXT_OUT,),
    "rwCommExplain": (Comm, _TEXT, _SIZE, _INT, _TEXT_OUT),
    "rwCommEmulation": (Comm, _TEXT_OUT),
    "rwCommUseSchedule": (Comm, _TEXT),
    "rwCommSetTimeout": (Comm, ctypes.c_int64),
    "rwTopologyFree": (TopologyHandle,),
    "rwTopologyDiscover": (_TOPOLOGY_OUT,),
    "rwTopologyRead": (_TEXT, _TEXT, _TOPOLOGY_OUT),
    "rwTopologySynthetic": (_TEXT, _TOPOLOGY_OUT),
    "rwTopologyPresets": (_TEXT_OUT,),
    "rwTopologyReplicate": (TopologyHandle, _INT, _INT, _TOPOLOGY_OUT),
    "rwTopologySelect": (TopologyHandle, _TEXT, _INT_OUT, _INT, _TOPOLOGY_OUT),
    "rwTopologyJson": (TopologyHandle, _TEXT_OUT),
    "rwTopologyMatrix": (TopologyHandle, _INT, _TEXT_OUT),
    "rwTopologyNcclXml": (TopologyHandle, _INT, _TEXT_OUT),
    "rwCommTopology": (Comm, _TOPOLOGY_OUT),
    "rwCommPlacement": (Comm, _TEXT_OUT),
    "rwTopologyPlace": (TopologyHandle, _INT, _INT, _TEXT_OUT),
    "rwLaunchDescribe": (_TEXT_OUT,),
    "rwPlanFree": (PlanHandle,),
    "rwPlanMake": (TopologyHandle, _TEXT, _PLAN_OUT),
    "rwPlanRead": (TopologyHandle, _TEXT, _TEXT, _PLAN_OUT),
    "rwPlanJson": (PlanHandle, _INT, _TEXT_OUT),
    "rwPlanTopology": (PlanHandle, _TOPOLOGY_OUT),
    "rwPlanBound": (TopologyHandle, _TEXT, _TEXT_OUT),
    "rwPlanCheck": (PlanHandle, _TEXT_OUT),
    "rwPlanTimes": (PlanHandle, _DOUBLES, _SIZE, _DOUBLES),
    "rwPlanAlgorithms": (_TEXT_OUT,),
    "rwPlanSplit": (_TEXT, ctypes.c_double, _TEXT_OUT),
    "rwSettingSet": (_TEXT, _TEXT, _TEXT),
    "rwSettingsDescribe": (_TEXT_OUT,),
    "rwTuningDescribe": (_INT, _INT, _TEXT_OUT),
    "rwMeasurePeers": (_SIZE, _INT, _TEXT_OUT),
    "rwProbe": (_TEXT, _TEXT_OUT),
    "rwCommCallRecords": (Comm, _TEXT_OUT),
    "rwMeasureGroup": (
        _COMM_OUT,
        _INT,
        ctypes.POINTER(MeasureSpec),
        ctypes.POINTER(MeasureResult),
    ),
}


def path() -> str:
    """The library's file: $ROPEWALK_LIBRARY, else the one in the package, else the system's."""
    named = os.environ.get("ROPEWALK_LIBRARY")
    if named:
        return named
    packaged = Path(__file__).parent / "lib" / "libropewalk.so.0"
    return str(packaged) if packaged.exists() else "libropewalk.so.0"


@functools.cache
def library() -> ctypes.CDLL:
    """The loaded library, with its prototypes set.

    Raises:
        SystemCallError: it cannot be loaded; the text says which file was tried and how to fix it.
    """
    where = path()
    try:
        loaded = ctypes.CDLL(where)
        for name, arguments in _PROTOTYPES.items():
            function = getattr(loaded, name)
            function.argtypes = arguments
            function.restype = ctypes.c_int
    except (OSError, AttributeError) as reason:
        raise errors.SystemCallError(
            f"loading the Ropewalk library {where}: {reason}; reinstall the ropewalk package, or "
            "let ROPEWALK_LIBRARY name a libropewalk.so that fits it"
        ) from reason
    loaded.rwGetErrorString.argtypes = (ctypes.c_int,)
    loaded.rwGetErrorString.restype = ctypes.c_char_p
    loaded.rwGetLastError.argtypes = (Comm,)
    loaded.rwGetLastError.restype = ctypes.c_char_p
    loaded.rwRequestError.argtypes = (Request,)
    loaded.rwRequestError.restype = ctypes.c_char_p
    loaded.rwWhyNoDevice.argtypes = ()
    loaded.rwWhyNoDevice.restype = ctypes.c_char_p
    loaded.rwFreeText.argtypes = (ctypes.c_void_p,)
    loaded.rwFreeText.restype = None
    TopologyHandle.free = loaded.rwTopologyFree
    PlanHandle.free = loaded.rwPlanFree
    interrupts.enable(loaded)
    return loaded


def _text(raw: Optional[bytes]) -> str:
    return (raw or b"").decode("utf-8", "replace")


def _without_function(raw: Optional[bytes]) -> bytes:
    """A thread's error without the name of the C function, which no caller of Python knows."""
    return re.sub(rb"^rw[A-Za-z]+: ", b"", raw or b"")


def check(result: int) -> None:
    """Raises the exception of this thread's last call unless its `result` is rwSuccess."""
    # Nobody asks the communicator: another thread may have aborted it, and it is gone.
    if result == errors.SUCCESS:
        return
    if result == errors.INTERRUPTED:
        interrupts.reraise()
    _raise(result, _without_function(library().rwGetLastError(None)))


def check_communicator(result: int, comm: Optional[int]) -> None:
    """Raises the exception of `result`, which is what the communicator has come to."""
    if result != errors.SUCCESS:
        _raise(result, library().rwGetLastError(comm))


def _raise(result: int, text: Optional[bytes]) -> NoReturn:
    raise errors.error(result, _text(text) or _text(library().rwGetErrorString(result)))


def check_request(result: int, request: Optional[int]) -> None:
    """As `check`, with the text of the request."""
    if result == errors.SUCCESS:
        return
    _raise(
        result,
        library().rwRequestError(request) or _without_function(library().rwGetLastError(None)),
    )


_Owned = TypeVar("_Owned", bound=OwnedHandle)


def made(kind: type[_Owned], function: Any, *arguments: Any) -> _Owned:
    """Calls a function whose last argument is a pointer to a handle; returns that handle."""
    out = kind()
    check(function(*arguments, ctypes.byref(out)))
    return out


def text_of(function: Any, *arguments: Any) -> str:
    """Calls a function whose last argument is a `char**`; returns and frees that text."""
    out = ctypes.c_void_p()
    check(function(*arguments, ctypes.byref(out)))
    try:
        return _text(ctypes.cast(out, ctypes.c_char_p).value)
    finally:
        library().rwFreeText(out)


def json_of(function: Any, *arguments: Any) -> Any:
    """As `text_of`, parsed."""
    return json.loads(text_of(function, *arguments))


def version() -> tuple[int, int, int]:
    """Major, minor and patch of the loaded library."""
    code = ctypes.c_int()
    check(library().rwGetVersion(ctypes.byref(code)))
    return code.value // 10000, code.value // 100 % 100, code.value % 100
