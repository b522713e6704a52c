"""Topologies and plans are handles of the library: who holds them, and for how long."""

from __future__ import annotations

import copy
import ctypes
import gc
import pickle
import threading
from pathlib import Path
from typing import Any, Callable

import pytest
import ropewalk
from ropewalk import _library, nics, planning, schedule, simulation, topology
from ropewalk.planning import Plan
from ropewalk.topology import Topology
from running import run_script

MACHINES = Path(__file__).resolve().parent.parent / "topologies"
SIZES = [1e3, 1e9]


@pytest.fixture
def machine() -> Topology:
    return topology.read(MACHINES / "rccl-4gpu-4nic-x2.json")


@pytest.fixture
def plan(machine: Topology) -> Plan:
    return ropewalk.plan(machine, "all_gather")


def used(plan: Plan) -> tuple[Any, ...]:
    """All that is done with a plan."""
    report = simulation.simulate(plan, most_messages=1e3, engine="builtin")
    times = plan.times_us(SIZES)
    return plan.check(), times, schedule.from_plan(plan), report["seconds"], plan.trees


def test_each_handle_is_freed_once_with_its_object(monkeypatch: pytest.MonkeyPatch) -> None:
    _library.library()
    freed: list[int] = []
    for kind in (_library.TopologyHandle, _library.PlanHandle):

        def note(handle: _library.OwnedHandle, free: Any = kind.free) -> None:
            assert handle.value is not None
            freed.append(handle.value)
            free(handle)

        monkeypatch.setattr(kind, "free", staticmethod(note))
    gc.collect()
    freed.clear()
    machine = topology.synthetic("4gpu nvswitch")
    made = ropewalk.plan(machine, "all_reduce")
    handles = [machine.c_handle.value, made.c_handle.value]
    copies = [copy.copy(machine), copy.deepcopy(machine), copy.copy(made), copy.deepcopy(made)]
    del machine
    assert freed == []
    del made, copies
    gc.collect()
    assert sorted(freed) == sorted(handles)  # type: ignore[type-var]
    freed.clear()
    with pytest.raises(ropewalk.ArgumentError):
        Topology.from_json("{")
    gc.collect()
    assert freed == []


def test_no_json_is_written_or_read_between_calls(
    machine: Topology, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = used(ropewalk.plan(machine, "all_gather"))

    def refuse(*_: Any) -> int:
        raise AssertionError("JSON")

    for name in ("rwTopologyRead", "rwTopologyJson", "rwPlanRead", "rwPlanJson"):
        monkeypatch.setattr(_library.library(), name, refuse)
    made = ropewalk.plan(machine, "all_gather")
    assert made.check() == wanted[0]
    assert made.times_us(SIZES) == wanted[1]
    assert schedule.from_plan(made) == wanted[2]
    played = simulation.simulate(made, most_messages=1e3, engine="builtin")
    assert played["seconds"] == wanted[3]
    ring = schedule.make("all_reduce", "ring", 8)
    assert simulation.simulate(ring, machine, engine="builtin")["ranks"] == 8
    assert machine.select(gpus=[0, 1]).matrix(0).cells
    assert planning.bound(machine, "all_reduce")["bound_gbps"] > 0
    assert nics.nic_report(machine)["rules"]
    with pytest.raises(AssertionError, match="JSON"):
        _ = made.rate_gbps


def test_attributes_come_without_the_trees(plan: Plan) -> None:
    assert plan.num_trees == len(plan.fields["trees"])
    fresh = ropewalk.plan(plan.topology, "all_gather")
    for name in plan.fields.keys() - {"topology"}:
        assert getattr(fresh, name) == plan.fields[name], name
    bare = ropewalk.plan(plan.topology, "all_gather")
    assert bare.rate_gbps == plan.rate_gbps
    assert "fields" not in vars(bare) and not hasattr(bare, "no_such_field")


@pytest.mark.parametrize(
    "take", [copy.copy, copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))]
)
def test_copies_are_as_good(plan: Plan, take: Callable[[Any], Any]) -> None:
    wanted = used(plan)
    machine = take(plan.topology)
    assert machine == plan.topology and hash(machine) == hash(plan.topology)
    assert machine is not plan.topology
    assert machine.nodes == plan.topology.nodes
    assert ropewalk.plan(machine, "all_gather").to_json() == plan.to_json()
    again = take(plan)
    assert again.to_json() == plan.to_json()
    assert again.topology == plan.topology
    assert used(again) == wanted


@pytest.mark.parametrize(
    "take", [copy.copy, copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))]
)
def test_copies_without_trees_are_as_good(machine: Topology, take: Callable[[Any], Any]) -> None:
    bare = ropewalk.plan(machine, "all_gather", trees=False, check=True)
    again = take(bare)
    assert again.to_json() == bare.to_json() and "trees" not in again.fields
    assert (again.rate_gbps, again.check()) == (bare.rate_gbps, bare.check())
    for each in (bare, again):
        with pytest.raises(ropewalk.ArgumentError, match="trees"):
            each.times_us(SIZES)
        with pytest.raises(ropewalk.ArgumentError, match="trees"):
            schedule.from_plan(each)
        with pytest.raises(AttributeError):
            _ = each.trees


@pytest.mark.parametrize("take", [copy.copy, copy.deepcopy])
def test_copies_in_one_process_share_the_handle(plan: Plan, take: Callable[[Any], Any]) -> None:
    assert take(plan).c_handle is plan.c_handle
    assert take(plan.topology).c_handle is plan.topology.c_handle


def test_a_deep_copy_has_lists_of_its_own(machine: Topology) -> None:
    nodes = copy.deepcopy(machine).nodes
    nodes.clear()
    assert machine.nodes


def test_a_plan_is_read_back_for_its_machine(plan: Plan) -> None:
    again = planning.read(plan.to_json(), plan.topology)
    assert again.to_json() == plan.to_json()
    assert used(again) == used(plan)
    alone = planning.read(plan.to_json())
    assert (alone.topology.name, alone.rate_gbps) == (plan.topology.name, plan.rate_gbps)
    other = topology.read(MACHINES / "dgx1v.json")
    with pytest.raises(ropewalk.ArgumentError, match=r'^p\.json: topology: is for "rccl'):
        planning.read(plan.to_json(), other, origin="p.json")
    with pytest.raises(ropewalk.ArgumentError, match=r"^plan: parse error"):
        planning.read("no plan")
    with pytest.raises(ropewalk.ArgumentError, match="topology is 3"):
        planning.read(plan.to_json(), 3)  # type: ignore[arg-type]


def test_a_plan_is_played_on_the_machine_that_is_named(plan: Plan) -> None:
    play: Callable[..., dict[str, Any]] = simulation.simulate
    options: dict[str, Any] = {"most_messages": 1e3, "engine": "builtin"}
    here = play(plan, **options)
    assert play(plan, copy.copy(plan.topology), **options) == here
    assert play(plan.to_json(), plan.topology.to_json(), **options) == here
    text = plan.topology.to_json()
    assert '"latency_us": ' not in text
    far = Topology.from_json(text.replace('"type": "net"', '"type": "net", "latency_us": 1e4'))
    assert play(plan, far, **options)["seconds"] > here["seconds"]
    with pytest.raises(ropewalk.ArgumentError, match=r'^mine: topology: is for "rccl'):
        play(plan, topology.read(MACHINES / "dgx1v.json"), subject_name="mine", **options)
    with pytest.raises(ropewalk.ArgumentError, match="subject is 3"):
        play(3, **options)
    with pytest.raises(ropewalk.ArgumentError, match="topology is 3"):
        play(plan, 3, **options)


def test_one_kind_of_handle_is_not_taken_for_another(plan: Plan) -> None:
    library = _library.library()
    out = ctypes.c_void_p()
    with pytest.raises(ctypes.ArgumentError):
        library.rwPlanJson(plan.topology.c_handle, 1, ctypes.byref(out))
    with pytest.raises(ctypes.ArgumentError):
        library.rwTopologyJson(plan.c_handle, ctypes.byref(out))
    with pytest.raises(ropewalk.ArgumentError, match=r"^plan: NULL$"):
        _library.check(library.rwPlanJson(None, 1, ctypes.byref(out)))


@pytest.mark.parametrize("take", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_handle_itself_is_not_copied(plan: Plan, take: Callable[[Any], Any]) -> None:
    for handle in (plan.c_handle, plan.topology.c_handle):
        with pytest.raises(TypeError, match="Handle cannot be pickled or copied"):
            take(handle)


def test_threads_share_a_plan(plan: Plan) -> None:
    wanted = used(plan)
    shared: Plan = pickle.loads(pickle.dumps(plan))  # which is read by whoever is first
    found: list[Any] = []
    begin = threading.Barrier(4)

    def work() -> None:
        begin.wait()
        found.append(used(shared))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == [wanted] * 4


def test_the_interpreter_ends_with_handles_in_use() -> None:
    run_script("""
        import sys, threading, time
        import ropewalk
        machine = ropewalk.topology.synthetic("4gpu nvswitch")
        plan = ropewalk.plan(machine, "all_reduce")
        plan.itself = plan
        sys.modules["kept"] = plan  # outlives the modules
        class Late:
            def __del__(self):
                assert plan.times_us([8])
        late = Late()
        def go_on():
            while True:
                machine.matrix()
        threading.Thread(target=go_on, daemon=True).start()
    """)


def test_a_forked_child_has_its_own() -> None:
    run_script("""
        import gc, os
        import ropewalk
        machine = ropewalk.topology.synthetic("4gpu nvswitch")
        plan = ropewalk.plan(machine, "all_reduce")
        wanted = plan.times_us([8, 1e9])
        for _ in range(3):
            child = os.fork()
            if child == 0:
                assert plan.times_us([8, 1e9]) == wanted
                assert machine.select(gpus=[0, 1]).gpus
                del plan, machine
                gc.collect()
                raise SystemExit(0)
            assert os.waitpid(child, 0)[1] == 0
        assert plan.times_us([8, 1e9]) == wanted
        assert machine.matrix().cells
    """)
