"""The adapter's members on real arrays, and on what is none."""

from __future__ import annotations

import gc
import sys
import types
from typing import Any

import pytest

from pytest_gpuleak.adapters.arrays import select_arrays
from pytest_gpuleak.adapters.jax import devices as jax_devices
from pytest_gpuleak.adapters.jax import lookup as jax_lookup
from pytest_gpuleak.adapters.jax.devices import JaxDevices
from pytest_gpuleak.adapters.jax.framework import JaxArrays, JaxFramework, JaxTracers, relax_garbage_guard
from pytest_gpuleak.model.readings import TRACE


@pytest.fixture(scope="module")
def jax() -> Any:
    return pytest.importorskip("jax")


def is_here(path: str) -> bool:
    return path == __file__


def arrays_alive(jax: Any) -> int:
    kind = type(jax.numpy.ones(1))
    return sum(type(value) is kind for value in gc.get_objects())


def test_a_reading_names_the_memory_and_makes_no_array(jax: Any) -> None:
    array = jax.numpy.ones((4, 8)) * 2
    arrays = JaxArrays()
    kind = arrays.array_type()
    assert kind is type(array)
    before = arrays_alive(jax)
    reading = arrays.read(array)
    assert reading is not None
    assert (reading.shape, reading.dtype, reading.device, reading.bytes) == ((4, 8), "float32", "cpu", 128)
    assert reading.shards == ()
    assert (reading.storage, arrays.storage_users(array)) == (arrays.storage(array), 1)
    assert arrays.hold(array).alive()
    assert arrays_alive(jax) == before


def test_the_array_tells_its_line(jax: Any) -> None:
    array = jax.numpy.ones((4, 8)) * 2
    (line,) = JaxArrays().creation_lines([array], is_here).values()
    assert line.code == "array = jax.numpy.ones((4, 8)) * 2"
    assert line.function == "test_the_array_tells_its_line"
    assert JaxArrays().creation_lines([array], lambda _: False) == {}


@pytest.mark.parametrize("how", ["deleted", "donated"])
def test_memory_that_was_given_away_is_gone(jax: Any, how: str) -> None:
    array = jax.numpy.ones(1000) * 2
    handle = JaxArrays().hold(array)
    assert handle.alive()
    if how == "deleted":
        array.delete()
    else:
        jax.jit(lambda x: x + 1, donate_argnums=0)(array)
    assert not handle.alive()
    assert JaxArrays().read(array) is None


def test_a_handle_keeps_nothing_alive(jax: Any) -> None:
    array = jax.numpy.ones(10) * 2
    handle = JaxArrays().hold(array)
    del array
    assert not handle.alive()


def test_what_jax_makes_of_an_array_is_a_part(jax: Any) -> None:
    array = jax.numpy.ones((3, 3)) * 2
    repr(array)
    alive = select_arrays(gc.get_objects(), [type(array)])
    parts = {id(value) for value in alive if value is not array and value.traceback is array.traceback}  # type: ignore[attr-defined]
    assert parts
    assert JaxArrays().parts(alive) & {id(array), *parts} == parts
    kept = [value for value in alive if id(value) in parts]
    assert JaxArrays().parts(alive).isdisjoint(parts), "what a container refers to is an array of its own"
    kept.clear()


def test_arrays_of_one_call_are_no_parts(jax: Any) -> None:
    first, second = jax.jit(lambda x: (x + 1, x + 2))(jax.numpy.ones(5))
    assert JaxArrays().parts([first, second]) == set()


def test_arrays_without_memory_are_not_read(jax: Any) -> None:
    assert JaxArrays().read(jax.numpy.ones((0, 5))) is None
    assert JaxArrays().read("no array") is None


@pytest.mark.parametrize("dtype", ["bool", "int8", "bfloat16", "complex64", "float8_e4m3fn", "int4"])
def test_any_dtype_is_read(jax: Any, dtype: str) -> None:
    reading = JaxArrays().read(jax.numpy.zeros(64, dtype=dtype))
    assert reading is not None
    assert reading.dtype == dtype
    assert reading.bytes > 0


def test_a_tracer_has_no_memory_and_names_its_function(jax: Any) -> None:
    kept = []

    def double(x: Any) -> Any:
        kept.append(x * 2)
        return x * 2

    jax.jit(double)(jax.numpy.ones(3))
    tracers = JaxTracers()
    kind = tracers.array_type()
    assert kind is not None
    assert kind in type(kept[0]).__mro__
    reading = tracers.read(kept[0])
    assert reading is not None
    assert (reading.device, reading.shape, reading.dtype, reading.bytes) == (TRACE, (3,), "float32", 0)
    (line,) = tracers.creation_lines(kept, is_here).values()
    assert (line.function, line.code) == ("double", "kept.append(x * 2)")
    handle = tracers.hold(kept[0])
    kept.clear()
    gc.collect()
    assert not handle.alive()


def test_a_framework_is_asked_without_a_device(jax: Any) -> None:
    jax.numpy.ones(1)
    framework = JaxFramework()
    assert framework.version() == jax.__version__
    assert framework.devices.read() == {}  # the CPU counts nothing
    assert framework.devices.idle
    assert (framework.device_names(), framework.device_space("cuda:0"), list(framework.settle_steps())) == (
        [],
        None,
        [],
    )
    assert not framework.is_distributed()


def test_programs_are_listed_by_name(jax: Any) -> None:
    def a_name_of_its_own(x: Any) -> Any:
        return x + 1

    function = jax.jit(a_name_of_its_own)
    function(jax.numpy.ones(3))
    assert "jit_a_name_of_its_own" in JaxFramework().program_names()


def test_instructions_are_those_of_the_newest_programs_of_a_name(jax: Any) -> None:
    framework, functions, counts = JaxFramework(), [], []
    for length in (50, 2):

        def sized(x: Any, length: int = length) -> Any:
            for number in range(length):
                x = jax.numpy.sin(x) + number
            return x

        functions.append(jax.jit(sized))  # a program goes with its function
        functions[-1](jax.numpy.ones(3))
        counts.append(framework.program_instructions({"jit_sized": 1}))
    assert counts[0] > 50 > counts[1] > 0
    assert framework.program_instructions({"jit_sized": 2}) == sum(counts)
    assert framework.program_instructions({"jit_unknown": 1}) == 0


def test_changed_settings_are_restored(jax: Any) -> None:
    before = jax.config.jax_default_matmul_precision
    (restore,) = JaxFramework().keep_states()
    jax.config.update("jax_default_matmul_precision", "float32")
    restore()
    assert jax.config.jax_default_matmul_precision == before


def test_no_backend_is_initialised(jax: Any, pytester: pytest.Pytester) -> None:
    del jax
    pytester.makepyfile(
        test_it="""
        import jax
        from jax._src import xla_bridge

        def test_it():
            assert not xla_bridge._backends

        def test_again():
            assert not xla_bridge._backends
        """
    )
    result = pytester.runpytest_subprocess("--gpu-leak", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=2)


def test_a_fatal_guard_against_garbage_ends_no_run(jax: Any, pytester: pytest.Pytester) -> None:
    del jax
    pytester.makepyfile(
        test_it="""
        import jax, pytest

        class Node:
            pass

        @pytest.fixture(scope="module", autouse=True)
        def guard():
            jax.config.update("jax_array_garbage_collection_guard", "fatal")
            yield
            assert jax.config.jax_array_garbage_collection_guard == "fatal"
            jax.config.update("jax_array_garbage_collection_guard", "allow")

        def test_in_a_cycle():
            node = Node()
            node.itself, node.array = node, jax.numpy.ones(100)

        def test_own_guard_in_a_block():
            with jax.array_garbage_collection_guard("fatal"):
                node = Node()
                node.itself, node.array = node, jax.numpy.ones(100)
        """
    )
    result = pytester.runpytest_subprocess("--gpu-leak", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*0 leaked, 2 noted*"])


def test_a_guard_is_relaxed_for_a_collection_alone(jax: Any) -> None:
    guards = jax._src.config.guard_lib
    levels = guards.GarbageCollectionGuardLevel
    assert relax_garbage_guard() is None
    with jax.array_garbage_collection_guard("log"):
        assert relax_garbage_guard() is None
    with jax.array_garbage_collection_guard("fatal"):
        restore = relax_garbage_guard()
        assert restore is not None
        assert guards.thread_local_state().garbage_collect_array == levels.LOG
        restore()
        assert guards.thread_local_state().garbage_collect_array == levels.FATAL


class Device:
    """A device of another backend, as jaxlib describes it."""

    platform, device_kind, id, local_hardware_id = "gpu", "NVIDIA H100", 3, 1

    def __init__(self, stats: object) -> None:
        self.stats = stats

    def memory_stats(self) -> object:
        if isinstance(self.stats, Exception):
            raise self.stats
        return self.stats


class Client:
    platform = "cuda"

    def __init__(self, *devices: Device) -> None:
        self.devices = devices

    def local_devices(self) -> list[Device]:
        return list(self.devices)


def with_device(monkeypatch: pytest.MonkeyPatch, stats: object) -> JaxDevices:
    bridge = types.ModuleType("jax._src.xla_bridge")
    bridge._backends = {"cuda": Client(Device(stats))}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jax._src.xla_bridge", bridge)
    return JaxDevices()


def test_a_devices_counters_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    stats = {"bytes_in_use": 4096, "peak_bytes_in_use": 8192, "pool_bytes": 1 << 20, "bytes_limit": 1 << 30,
             "largest_free_block_bytes": 1 << 19}  # fmt: skip
    probe = with_device(monkeypatch, stats)
    (reading,) = probe.read().values()
    assert (list(probe.read()), reading.allocated, reading.reserved, reading.peak) == (["cuda:1"], 4096, 1 << 20, None)
    assert not probe.idle
    assert jax_devices.device_names() == ["cuda:1 NVIDIA H100"]
    space = jax_devices.device_space("cuda:1")
    assert space is not None
    assert (space.total, space.free, space.largest_free) == (1 << 30, (1 << 30) - 4096, 1 << 19)
    assert jax_devices.device_space("cuda:7") is None


@pytest.mark.parametrize(
    "stats", [None, {}, {"bytes_in_use": -1}, {"bytes_in_use": "many"}, {"bytes_in_use": 1 << 63}, 3]
)
def test_implausible_counters_are_none(monkeypatch: pytest.MonkeyPatch, stats: object) -> None:
    assert with_device(monkeypatch, stats).read() == {}


def test_a_failing_device_is_reported_by_its_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = with_device(monkeypatch, RuntimeError("device lost"))
    with pytest.raises(RuntimeError, match="device lost"):
        probe.read()
    assert jax_devices.device_space("cuda:1") is None


def test_new_backends_are_met(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = with_device(monkeypatch, None)
    assert probe.read() == {}
    sys.modules["jax._src.xla_bridge"]._backends["other"] = Client(Device({"bytes_in_use": 1}))
    assert list(probe.read()) == ["cuda:1"]


@pytest.mark.parametrize("stand_in", [None, "text", types.SimpleNamespace(ArrayImpl=int), types.ModuleType("array")])
def test_a_stand_in_for_jax_is_none(monkeypatch: pytest.MonkeyPatch, stand_in: object) -> None:
    monkeypatch.setattr(jax_lookup.ARRAYS, "_found", None)
    monkeypatch.setitem(sys.modules, "jax._src.array", stand_in)
    assert JaxArrays().array_type() is None
    assert JaxTracers().array_type() is None


def test_jax_half_imported_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax_lookup.ARRAYS, "_found", None)
    half = types.ModuleType("jax._src.array")
    monkeypatch.setitem(sys.modules, "jax._src.array", half)
    assert JaxArrays().array_type() is None
    native = types.ModuleType("jaxlib._jax")
    native.ArrayImpl = half.ArrayImpl = type("ArrayImpl", (), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jaxlib._jax", native)
    assert JaxArrays().array_type() is native.ArrayImpl


def test_removed_from_the_loaded_modules_it_is_still_known(jax: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    array = jax.numpy.ones(3)
    assert JaxArrays().array_type() is type(array)
    for name in [name for name in sys.modules if name.partition(".")[0] in ("jax", "jaxlib")]:
        monkeypatch.delitem(sys.modules, name)
    assert JaxArrays().array_type() is type(array)
    assert JaxArrays().read(array) is not None
    assert JaxFramework().version() is None
