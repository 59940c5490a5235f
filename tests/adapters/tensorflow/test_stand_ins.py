"""What is found of a TensorFlow that is absent, half imported, replaced, or has GPUs. Needs no TensorFlow."""

from __future__ import annotations

import gc
import random
import sys
import weakref
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pytest_gpuleak.adapters.late import LateClass
from pytest_gpuleak.adapters.tensorflow import lookup, reading
from pytest_gpuleak.adapters.tensorflow.devices import TensorFlowDevices, background_steps
from pytest_gpuleak.adapters.tensorflow.framework import TensorFlowArrays, TensorFlowFramework
from pytest_gpuleak.adapters.tensorflow.states import keep_states

pytestmark = pytest.mark.newest

MIB = 1 << 20


class EagerTensor:
    """As TensorFlow's class, by the names that it has in C."""

    _id = _handle_data = device = property(lambda self: None)

    def _shape_tuple(self) -> tuple[int, ...]:
        raise RuntimeError("the tensor is gone")

    def _datatype_enum(self) -> int:
        raise RuntimeError("the tensor is gone")


class Context:
    """As TensorFlow's eager context, initialised, with two GPUs."""

    def __init__(self) -> None:
        self._context_handle: object = "handle"
        self._initialized = True
        self._logical_devices = [
            SimpleNamespace(name=f"/device:{name}", device_type=name.partition(":")[0])
            for name in ("CPU:0", "GPU:0", "GPU:1")
        ]
        self._seed, self._rng = 7, random.Random(7)
        self.waits = 0

    def sync_executors(self) -> None:
        self.waits += 1

    def is_async(self) -> bool:
        return False


@pytest.fixture(autouse=True)
def no_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in ("tensorflow", "keras")]:
        monkeypatch.delitem(sys.modules, name)
    fresh = LateClass(lookup.OPS, "EagerTensor", accepts=lookup._is_tensor_class)
    importers = (sys.modules[kind.__module__] for kind in (TensorFlowArrays, TensorFlowFramework))
    for module in (lookup, reading, *importers):
        monkeypatch.setattr(module, "TENSORS", fresh)


def stand(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(members)
    monkeypatch.setitem(sys.modules, name, module)
    return module


def with_context(monkeypatch: pytest.MonkeyPatch, context: Context | None) -> None:
    stand(monkeypatch, lookup.CONTEXT, Context=Context, _context=context)


def test_without_tensorflow_there_is_nothing() -> None:
    framework = TensorFlowFramework()
    assert framework.arrays.array_type() is None
    assert framework.devices.read() == {}
    assert framework.version() is None
    assert [*framework.settle_steps(), *framework.keep_states()] == []


@pytest.mark.parametrize("found", [None, "a text", object(), type("EagerTensor", (), {})])
def test_what_is_no_tensor_class_is_not_taken_for_one(monkeypatch: pytest.MonkeyPatch, found: object) -> None:
    stand(monkeypatch, lookup.OPS, EagerTensor=found)
    assert TensorFlowArrays().array_type() is None


def test_a_module_that_is_half_imported_has_no_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    stand(monkeypatch, lookup.OPS)
    assert TensorFlowArrays().array_type() is None


def test_a_mock_in_its_place_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mock:
        def __getattr__(self, name: str) -> object:
            raise AssertionError(name)

    for name in (lookup.OPS, lookup.CONTEXT, "tensorflow"):
        monkeypatch.setitem(sys.modules, name, Mock())
    framework = TensorFlowFramework()
    assert framework.arrays.array_type() is None
    assert framework.devices.read() == {}
    assert framework.version() is None


def test_tensors_are_known_while_their_module_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    stand(monkeypatch, lookup.OPS, EagerTensor=EagerTensor)
    assert TensorFlowArrays().array_type() is EagerTensor
    monkeypatch.delitem(sys.modules, lookup.OPS)
    assert TensorFlowArrays().array_type() is EagerTensor


def test_a_tensor_that_cannot_be_read_owns_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stand(monkeypatch, lookup.OPS, EagerTensor=EagerTensor)
    tensor = EagerTensor()
    assert TensorFlowArrays().read(tensor) is None
    assert TensorFlowArrays().storage(tensor) == id(tensor)
    handle = TensorFlowArrays().hold(tensor)
    assert handle.alive()
    del tensor
    assert not handle.alive()


@pytest.mark.parametrize(
    ("full", "name"),
    [
        ("/job:localhost/replica:0/task:0/device:CPU:0", "cpu"),
        ("/job:localhost/replica:0/task:0/device:GPU:1", "gpu:1"),
        ("/device:TPU:3", "tpu:3"),
        ("", "cpu"),
    ],
)
def test_names_of_devices(full: str, name: str) -> None:
    assert reading.device_name(full) == name


def test_counters_of_the_gpus_of_an_initialised_context(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def get_memory_info(handle: object, device: str) -> dict[str, int]:
        asked.append((handle, device))
        return {"current": 3 * MIB if device == "GPU:0" else -1, "peak": 9 * MIB}

    stand(monkeypatch, "tensorflow.python.pywrap_tfe", TFE_GetMemoryInfo=get_memory_info)
    with_context(monkeypatch, Context())
    devices = TensorFlowDevices()
    readings = devices.read()
    assert {name: reading.allocated for name, reading in readings.items()} == {"gpu:0": 3 * MIB}
    assert devices.absent == {"gpu:1": "its counters are out of range"}
    assert asked == [("handle", "GPU:0"), ("handle", "GPU:1")]
    assert not devices.idle


def test_devices_that_appear_later_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A context is initialised anew where a test changes its devices, with another list of them."""
    stand(monkeypatch, "tensorflow.python.pywrap_tfe", TFE_GetMemoryInfo=lambda *_: {"current": MIB})
    context = Context()
    everything = context._logical_devices
    context._logical_devices = everything[:1]
    with_context(monkeypatch, context)
    devices = TensorFlowDevices()
    assert (devices.read(), devices.read(), devices.idle) == ({}, {}, True)
    context._logical_devices = everything
    assert (set(devices.read()), devices.idle) == ({"gpu:0", "gpu:1"}, False)
    context._logical_devices = everything[:1]
    assert (devices.read(), devices.idle) == ({}, True)


@pytest.mark.parametrize("state", [{"_context_handle": None}, {"_initialized": False}, {"_logical_devices": None}])
def test_a_context_that_is_not_initialised_is_not_asked(
    monkeypatch: pytest.MonkeyPatch, state: dict[str, object]
) -> None:
    context = Context()
    vars(context).update(state)
    with_context(monkeypatch, context)
    assert TensorFlowDevices().read() == {}
    with_context(monkeypatch, None)
    assert TensorFlowDevices().read() == {}


def test_the_executors_are_waited_for_where_operations_run_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    context = Context()
    with_context(monkeypatch, context)
    (step,) = background_steps()
    assert list(step.steps()) == [None]
    assert context.waits == 1
    context._logical_devices = context._logical_devices[:1]
    assert background_steps() == []


def test_traces_are_told_by_the_names_of_their_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {
        "__inference_step_12", "__inference_step_31", b"__inference_Net.call_7", "__inference___backward_step_66_94",
        "__forward_step_93", "cond_true_27", "__wrapped__Fill_device_/job:localhost/replica:0/task:0/device:CPU:0",
    }  # fmt: skip
    context = Context()
    context.list_function_names = lambda: names  # type: ignore[attr-defined] # not each version has it
    with_context(monkeypatch, context)
    framework = TensorFlowFramework()
    assert sorted(framework.program_names()) == ["Net.call", "step", "step"]
    assert framework.program_count() == framework.program_count() == 3
    names.add("__inference_other_8")
    assert framework.program_count() == 4
    del context.list_function_names  # type: ignore[attr-defined]
    assert (list(framework.program_names()), framework.program_count()) == ([], 0)


def test_names_are_read_only_once_the_registry_of_functions_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = {(0, b"__inference_step_1"): 1}
    asked: list[int] = []

    def names() -> set[bytes]:
        asked.append(len(registry))
        return {name for _, name in registry}

    context = Context()
    context.list_function_names = names  # type: ignore[attr-defined] # not each version has it
    with_context(monkeypatch, context)
    module = "tensorflow.python.eager.polymorphic_function.atomic_function"
    stand(monkeypatch, module, RUNTIME_FUNCTION_REFS=registry)
    framework = TensorFlowFramework()
    assert framework.program_count() == framework.program_count() == 1
    registry[0, b"__inference_step_2"] = 1
    assert framework.program_count() == framework.program_count() == 2
    del registry[0, b"__inference_step_1"]
    registry[0, b"__inference___backward_step_3"] = 1  # as many functions as before, one trace less
    assert framework.program_count() == framework.program_count() == 1
    assert asked == [1, 2, 2]


@pytest.mark.parametrize(("tasks", "distributed"), [((), False), ((1,), False), ((1, 1), True), ((3,), True)])
def test_a_cluster_of_several_tasks_is_told(
    monkeypatch: pytest.MonkeyPatch, tasks: tuple[int, ...], distributed: bool
) -> None:
    context = Context()
    jobs = [SimpleNamespace(tasks=dict.fromkeys(range(count), "host")) for count in tasks]
    context._server_def = SimpleNamespace(cluster=SimpleNamespace(job=jobs))  # type: ignore[attr-defined]
    with_context(monkeypatch, context)
    assert TensorFlowFramework().is_distributed() == distributed


def test_seeds_and_names_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    context = Context()
    with_context(monkeypatch, context)
    tracker = SimpleNamespace(object_name_uids={"dense": 2})
    stand(monkeypatch, "keras.src.backend.common.global_state", GLOBAL_STATE_TRACKER=tracker)
    restores = keep_states()
    following = random.Random(7).random()
    tracker.object_name_uids.update(dense=3, conv=1)
    context._rng.random()
    context._seed = 8
    for restore in restores:
        restore()
    assert context._seed == 7
    assert context._rng.random() == following
    assert tracker.object_name_uids == {"dense": 2}


def test_names_of_keras_2_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    class Graph:
        pass

    graph = Graph()
    names = {"dense": 2}
    table = weakref.WeakKeyDictionary({graph: names})
    stand(monkeypatch, "keras.src.backend", PER_GRAPH_OBJECT_NAME_UIDS=table)
    restores = keep_states()
    names.update(dense=3, conv=1)
    for restore in restores:
        restore()
    assert table[graph] == {"dense": 2}
    died = weakref.ref(graph)
    del graph
    gc.collect()
    assert died() is None


def with_pool(monkeypatch: pytest.MonkeyPatch, info: object) -> None:
    with_context(monkeypatch, Context())

    def ask(handle: object, device: str) -> Any:
        assert (handle, device) == ("handle", "CPU:0")
        if isinstance(info, Exception):
            raise info
        return info

    stand(monkeypatch, "tensorflow.python.pywrap_tfe", TFE_GetMemoryInfo=ask)


def test_growth_is_the_pools_where_its_peak_has_risen(monkeypatch: pytest.MonkeyPatch) -> None:
    framework, info = TensorFlowFramework(), {"current": 0, "peak": 10 * MIB}
    with_pool(monkeypatch, info)
    assert framework.pool_growth(32 * MIB) == 32 * MIB
    assert framework.pool_growth(3 * MIB) == 0  # the peak is the same
    info["peak"] += MIB
    assert framework.pool_growth(100 * MIB) == 4 * 11 * MIB + 2 * MIB - 32 * MIB
    info["peak"] += 1
    assert framework.pool_growth(MIB) == 4
    info["peak"] = 5 * MIB  # restarted by `reset_memory_stats`
    assert framework.pool_growth(MIB) == 0


@pytest.mark.parametrize("info", [{}, {"peak": "much"}, {"peak": -1}, ValueError("no statistics")])
def test_a_pool_whose_peak_is_not_told_explains_nothing(monkeypatch: pytest.MonkeyPatch, info: object) -> None:
    with_pool(monkeypatch, info)
    assert TensorFlowFramework().pool_growth(MIB) == 0


def test_without_a_context_no_pool_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert TensorFlowFramework().pool_growth(MIB) == 0
    with_context(monkeypatch, None)
    assert TensorFlowFramework().pool_growth(MIB) == 0
