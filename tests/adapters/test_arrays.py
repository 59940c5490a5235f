"""What is read of a tensor, and that reading it has no side effects."""

from __future__ import annotations

import gc
import random
import sys
import types
import weakref
from typing import Any

import pytest

from pytest_gpuleak.adapters.arrays import _AT_ONCE, _outlives_tests, are_plain, note_permanent, select_arrays
from pytest_gpuleak.adapters.torch.framework import TorchArrays
from tests.conftest import forget_torch

pytestmark = pytest.mark.interpreter


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_torch(monkeypatch)
    assert TorchArrays().array_type() is None


@pytest.mark.parametrize("module", [types.ModuleType("torch"), object(), None])
def test_a_stand_in_for_torch(monkeypatch: pytest.MonkeyPatch, module: Any) -> None:
    forget_torch(monkeypatch)
    if type(module) is types.ModuleType:
        module.Tensor = type("Tensor", (), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", module)
    assert TorchArrays().array_type() is None


def test_strangers_are_not_asked() -> None:
    class Meta(type):
        def __eq__(cls, other: object) -> bool:
            raise AssertionError("asked")

        def __hash__(cls) -> int:
            raise AssertionError("asked")

        def __getattribute__(cls, name: str) -> Any:
            raise AssertionError("asked")

    class Stranger(metaclass=Meta):
        @property  # type: ignore[misc] # what a proxy does
        def __class__(self) -> Any:
            raise AssertionError("asked")

    stranger = Meta.__new__(Meta, "Made", (), {"__eq__": lambda *_: 1 / 0})

    class Array:
        pass

    array = Array()
    assert select_arrays([object.__new__(Stranger), stranger, 1], [Array]) == []
    assert select_arrays([array, stranger, {}], [Array]) == [array]


def test_only_types_of_the_library_outlive_the_tests() -> None:
    class Made:
        pass

    kinds: list[type] = [dict, list, random.Random, type(pytest.Session)]
    assert all(map(_outlives_tests, kinds))
    assert not _outlives_tests(Made)
    assert not _outlives_tests(type("Random", (), {"__module__": "random"}))


def test_types_of_installed_plugins_outlive_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    class Settings:
        pass

    module = types.ModuleType("odd_plugin.settings")
    Settings.__module__, module.Settings = module.__name__, Settings  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    packages = set[str]()
    monkeypatch.setattr("pytest_gpuleak.adapters.arrays._PERMANENT", packages)
    assert not _outlives_tests(Settings)
    note_permanent(["odd_plugin"])
    assert _outlives_tests(Settings)
    del module.Settings
    assert not _outlives_tests(Settings)


def test_few_objects_of_known_types_are_plain() -> None:
    class Array:
        pass

    assert are_plain([{}, [], ()])
    assert are_plain([{}, [], ()])  # as last time
    assert not are_plain([{}, [], Array()])
    assert not are_plain([[] for _ in range(1000)])


@pytest.mark.parametrize("count", [10, 999, 1000, _AT_ONCE - 1, _AT_ONCE, _AT_ONCE + 1, 3 * _AT_ONCE])
def test_arrays_are_found_wherever_they_stand(count: int) -> None:
    class Array:
        pass

    class Derived(Array):
        pass

    class Stranger:
        pass

    makers = [list, Stranger, dict, Array, tuple, Derived, Stranger, set]
    objects: list[object] = [makers[number % 8]() for number in range(count)]
    expected = [one for one in objects if isinstance(one, Array)]
    assert expected
    assert list(map(id, select_arrays(objects, [Array]))) == list(map(id, expected))
    assert select_arrays(objects, []) == []
    assert len(objects) == count


def ready() -> TorchArrays:
    """The framework, once it has seen that torch is imported."""
    arrays = TorchArrays()
    assert arrays.array_type() is not None
    return arrays


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.mark.torch
class TestTensors:
    def test_a_plain_tensor(self, torch: Any) -> None:
        tensor = torch.ones(4, 8)
        reading = ready().read(tensor)
        assert reading is not None
        assert (reading.shape, reading.dtype, reading.device) == ((4, 8), "float32", "cpu")
        assert (reading.bytes, reading.storage_bytes, reading.identity) == (128, 128, id(tensor))

    def test_a_view_shares_its_storage(self, torch: Any) -> None:
        whole = torch.ones(100)
        part, all_of_it = ready().read(whole[3]), ready().read(whole)
        assert part is not None
        assert all_of_it is not None
        assert (part.bytes, part.storage_bytes, part.storage) == (4, 400, all_of_it.storage)
        assert ready().storage(whole) == all_of_it.storage

    @pytest.mark.parametrize("make", ["to_sparse", "to_sparse_csr", "to_mkldnn"])
    @pytest.mark.filterwarnings("ignore")
    def test_tensors_without_a_storage(self, torch: Any, make: str) -> None:
        tensor = getattr(torch.eye(4), make)()
        reading = ready().read(tensor)
        assert reading is not None
        assert reading.storage_bytes >= 16
        handle = ready().hold(tensor)
        assert handle.alive()
        del tensor
        assert not handle.alive()

    def test_tensors_that_own_no_memory(self, torch: Any) -> None:
        from torch._subclasses.fake_tensor import FakeTensorMode

        with FakeTensorMode():
            fake = torch.ones(10)

        class Wrapper(torch.Tensor):  # type: ignore[misc]
            @staticmethod
            def __new__(cls, inner: Any) -> Any:
                return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

            @classmethod
            def __torch_dispatch__(cls, *_: Any) -> Any:
                raise AssertionError("asked")

        for tensor in (fake, torch.ones(10, device="meta"), torch.empty(0), Wrapper(torch.ones(3))):
            assert ready().read(tensor) is None

    def test_a_subclass_is_not_asked(self, torch: Any) -> None:
        class Rude(torch.Tensor):  # type: ignore[misc]
            @classmethod
            def __torch_function__(cls, *_: Any, **__: Any) -> Any:
                raise AssertionError("asked")

            @property
            def shape(self) -> Any:
                raise AssertionError("asked")

        rude = torch.ones(5).as_subclass(Rude)
        reading = ready().read(rude)
        assert reading is not None
        assert reading.shape == (5,)

    def test_a_mode_is_not_asked(self, torch: Any) -> None:
        from torch.overrides import TorchFunctionMode

        class Rude(TorchFunctionMode):  # type: ignore[misc]
            def __torch_function__(self, *_: Any, **__: Any) -> Any:
                raise AssertionError("asked")

        tensor = torch.ones(5)
        with Rude():
            assert ready().read(tensor) is not None
            assert ready().hold(tensor).alive()

    def test_a_handle_is_no_weak_reference(self, torch: Any) -> None:
        """`torch.utils.swap_tensors` refuses tensors that have one."""
        one, other = torch.ones(3), torch.zeros(3)
        handle = ready().hold(one)
        assert weakref.getweakrefcount(one) == 0
        torch.utils.swap_tensors(one, other)
        del one, other
        assert not handle.alive()

    def test_the_creating_line(self, torch: Any) -> None:
        with ready().trace_origins(lambda path: path == __file__) as log:
            made = torch.ones(8) * 2  # made here
            literal = torch.tensor([1.0, 2.0])  # written here
            view = made[2:]
        assert "made here" in log[ready().storage(view)].code
        assert "written here" in log[ready().storage(literal)].code
        assert log[ready().storage(made)].function == "test_the_creating_line"

    def test_tracing_keeps_nothing_alive(self, torch: Any) -> None:
        with ready().trace_origins(lambda path: path == __file__):
            reference = weakref.ref(torch.ones(8).relu())
            gc.collect()
            assert reference() is None
