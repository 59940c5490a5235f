"""CuPy's memory pools, settle steps and random generators, with stand-ins of their shape: CuPy is not needed."""

from __future__ import annotations

import contextlib
import sys
import types
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.adapters.cupy.framework import CupyFramework
from pytest_gpuleak.adapters.cupy.pools import CupyDevices, used_devices
from pytest_gpuleak.adapters.probe_protocol import DeviceReading

if TYPE_CHECKING:
    from collections.abc import Iterator


class SingleDeviceMemoryPool:
    """One device's pool."""

    def __init__(self, total: int = 0, free: int = 0) -> None:
        self.total, self.free = total, free

    def total_bytes(self) -> int:
        return self.total

    def free_bytes(self) -> int:
        return self.free

    def free_all_blocks(self) -> None:
        self.total -= self.free
        self.free = 0


class MemoryPool(list[object]):
    """A pool for all devices, which refers to one of each as CuPy's does: `pop` stands for its `malloc`."""

    __slots__ = ("_pools",)

    def __init__(self, pools: object) -> None:
        super().__init__()
        self._pools = pools

    def used_bytes(self) -> int:
        raise AssertionError("it would initialise CUDA")

    total_bytes = free_bytes = free_all_blocks = used_bytes


class MemoryAsyncPool(list[object]):
    """The pool of ``cudaMallocAsync``."""


class Plans:
    cleared = 0

    def clear(self) -> None:
        Plans.cleared += 1


class FakeCupy:
    """The modules that the adapter looks at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, int]] = []
        self.capturing = False
        self.pinned = SingleDeviceMemoryPool(0, 0)
        modules: dict[str, dict[str, Any]] = {
            "cupy": {"cuda": self, "random": object(), "_default_pinned_memory_pool": self.pinned},
            "cupy.cuda.memory": {
                "SingleDeviceMemoryPool": SingleDeviceMemoryPool,
                "MemoryPool": MemoryPool,
                "MemoryAsyncPool": MemoryAsyncPool,
            },
            "cupy.fft._cache": {"get_plan_cache": Plans},
            "cupy.random._generator": {"_random_states": {}},
        }
        self.modules = {name: types.ModuleType(name) for name in modules}
        for name, namespace in modules.items():
            vars(self.modules[name]).update(namespace)
            monkeypatch.setitem(sys.modules, name, self.modules[name])

    def allocate_from(self, pools: object) -> None:
        vars(self.modules["cupy"])["_default_memory_pool"] = MemoryPool(pools)

    def get_current_stream(self) -> Any:
        return types.SimpleNamespace(is_capturing=lambda: self.capturing)

    def Device(self, index: int) -> Any:  # noqa: N802 - as CuPy names it
        @contextlib.contextmanager
        def current() -> Iterator[None]:
            self.calls.append(("enter", index))
            yield

        device: Any = current()
        device.synchronize = lambda: self.calls.append(("wait", index))
        return device


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> FakeCupy:
    return FakeCupy(monkeypatch)


def test_nothing_is_read_before_a_pool_has_taken_memory(cupy: FakeCupy) -> None:
    devices = CupyDevices()
    unused: list[object] = [None, (), {}, (SingleDeviceMemoryPool(), SingleDeviceMemoryPool())]
    for pools in unused:
        cupy.allocate_from(pools)
        assert devices.read() == {}
        assert devices.idle
        assert CupyFramework().settle_steps() == ()
        assert CupyFramework().release_cache(["cuda"]) == []
    assert cupy.calls == []


@pytest.mark.parametrize("kind", [tuple, dict])
def test_each_device_is_read_by_its_own_pool(cupy: FakeCupy, kind: type) -> None:
    singles = (SingleDeviceMemoryPool(), SingleDeviceMemoryPool(4096, 1024))
    cupy.allocate_from(singles if kind is tuple else dict(enumerate(singles)))
    devices = CupyDevices()
    assert devices.read() == {"cuda:1": DeviceReading(3072, reserved=4096)}
    assert not devices.idle
    assert used_devices() == [1]
    singles[1].free = 4096
    singles[1].free_all_blocks()
    assert devices.read() == {"cuda:1": DeviceReading(0, reserved=0)}, "a device that was met stays"


def allocator_of(pool: Any) -> Any:
    """A function that C defines and that returns a method that C defines, as CuPy's `get_allocator` does."""
    return ([pool.pop] * 9).pop


def test_a_pool_that_the_tests_made_the_allocator_is_added(cupy: FakeCupy) -> None:
    cupy.allocate_from((SingleDeviceMemoryPool(1024),))
    own = MemoryPool((SingleDeviceMemoryPool(512, 256),))
    vars(cupy.modules["cupy.cuda.memory"])["get_allocator"] = allocator_of(own)
    assert CupyDevices().read() == {"cuda:0": DeviceReading(1280, reserved=1536)}


def test_a_pool_without_counters_is_told(cupy: FakeCupy) -> None:
    cupy.allocate_from(())
    pool = MemoryAsyncPool()
    vars(cupy.modules["cupy.cuda.memory"])["get_allocator"] = allocator_of(pool)
    devices = CupyDevices()
    assert devices.read() == {}
    assert "MemoryAsyncPool" in devices.absent["cuda"]


def test_settle_steps_run_on_used_devices_alone(cupy: FakeCupy) -> None:
    singles = (SingleDeviceMemoryPool(), SingleDeviceMemoryPool(4096, 1024))
    cupy.allocate_from(singles)
    steps = CupyFramework().settle_steps()
    before = Plans.cleared
    for step in steps:
        assert not step.collects
        assert list(step.steps()) == [None]
    assert ("wait", 1) in cupy.calls
    assert {index for _, index in cupy.calls} == {1}
    assert Plans.cleared == before + 1
    assert (singles[1].total, singles[1].free) == (3072, 0)


def test_no_settle_step_ends_a_capture_or_raises(cupy: FakeCupy) -> None:
    singles = (SingleDeviceMemoryPool(4096, 1024),)
    cupy.allocate_from(singles)
    steps = CupyFramework().settle_steps()
    cupy.capturing = True
    assert [list(step.steps()) for step in steps] == [[], [], [], []]
    assert singles[0].free == 1024
    del cupy.modules["cupy"].__dict__["cuda"]
    assert [list(step.steps()) for step in steps] == [[], [], [], []]


def test_the_cache_is_released_on_request(cupy: FakeCupy) -> None:
    singles = (SingleDeviceMemoryPool(4096, 1024),)
    cupy.allocate_from(singles)
    assert CupyFramework().release_cache(["mps"]) == []
    assert CupyFramework().release_cache(["cuda"]) == ["cuda"]
    assert singles[0].total == 3072


def test_random_generators_are_put_aside_for_a_rerun(cupy: FakeCupy) -> None:
    namespace = vars(cupy.modules["cupy.random._generator"])
    assert CupyFramework().keep_states() == ()
    generator, other = object(), object()
    namespace["_random_states"][0] = generator
    (restore,) = CupyFramework().keep_states()
    assert namespace["_random_states"] == {}
    namespace["_random_states"] = {0: other, 1: other}
    restore()
    assert namespace["_random_states"] == {0: generator}


def test_nothing_is_asked_of_a_cupy_that_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "cupy"]:
        monkeypatch.delitem(sys.modules, name)
    framework = CupyFramework()
    assert framework.devices.read() == {}
    assert framework.devices.idle
    assert [*framework.settle_steps(), *framework.keep_states()] == []
    assert framework.version() is None
    assert "cupy" not in sys.modules
