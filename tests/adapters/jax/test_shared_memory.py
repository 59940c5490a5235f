"""Memory that JAX's arrays share with each other and with other frameworks' arrays is counted once."""

from __future__ import annotations

import gc
from importlib.util import find_spec
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.adapters.bulk import read_united
from pytest_gpuleak.adapters.jax import reading
from pytest_gpuleak.adapters.jax.framework import JaxArrays
from pytest_gpuleak.model.readings import MemoryRange

if TYPE_CHECKING:
    from tests.conftest import Runner

MIB = 2**20

FREED = {"clean", "noted"}
"""Verdicts of a test that leaves nothing: what a consumer of DLPack frees JAX may let go with the next collection."""

JAX_AND_NUMPY = """
    import jax, jax.numpy as jnp, numpy as np

    PAIRS, ARRAYS, COPIES, CAPSULES = [], [], [], []

    def make():
        return jnp.ones((512, 512)) * 2

    def test_addressable_data():
        array = make()
        PAIRS.append((array, array.addressable_data(0)))

    def test_numpy_from_dlpack():
        ARRAYS.append(np.from_dlpack(make()))

    def test_capsule():
        CAPSULES.append(make().__dlpack__())

    def test_both():
        array = make()
        PAIRS.append((np.from_dlpack(array), array, np.asarray(array)))

    def test_copies():
        COPIES.append((make(), make()))

    def test_clean():
        array = make()
        assert np.from_dlpack(array).sum() == np.asarray(array.addressable_data(0)).sum()
"""

JAX_AND_TORCH = """
    import jax, jax.numpy as jnp, numpy as np, torch

    BOTH, TENSORS, ARRAYS, APART = [], [], [], []

    def make():
        return jnp.ones((512, 512)) * 2

    def test_array_and_tensor():
        array = make()
        BOTH.append((array, torch.from_dlpack(array)))

    def test_tensor_over_an_array():
        TENSORS.append(torch.from_dlpack(make()))

    def test_array_over_a_tensor():
        ARRAYS.append(jnp.from_dlpack(torch.ones(512, 512)))

    def test_all_three():
        tensor = torch.ones(512, 512)
        array = jnp.from_dlpack(tensor)
        BOTH.append((tensor, array, np.asarray(array), tensor.numpy()))

    def test_apart():
        APART.append((torch.ones(512, 512), make()))

    def test_clean():
        assert torch.from_dlpack(make()).sum().item() == jnp.from_dlpack(torch.full((512, 512), 2.0)).sum().item()
"""


@pytest.fixture(scope="module")
def jax() -> Any:
    return pytest.importorskip("jax")


def test_the_place_is_told_and_no_array_made(jax: Any) -> None:
    array = (jax.numpy.ones((4, 8)) * 2).block_until_ready()
    kind = type(array)
    before = sum(type(value) is kind for value in gc.get_objects())
    memory = JaxArrays().memory(array)
    assert memory is not None
    assert memory.size == 128
    assert sum(type(value) is kind for value in gc.get_objects()) == before
    assert memory.start == array.unsafe_buffer_pointer()


def test_arrays_over_one_buffer_are_one_storage(jax: Any) -> None:
    array = (jax.numpy.ones((4, 8)) * 2).block_until_ready()
    part, other = array.addressable_data(0), array + 1
    readings = read_united([array, part, other.block_until_ready()], [JaxArrays()])
    assert readings[id(array)].storage == readings[id(part)].storage != readings[id(other)].storage


def test_an_array_that_cannot_tell_has_no_place(jax: Any) -> None:
    sharding = jax.sharding
    mesh = sharding.Mesh(jax.devices(), ("x",))
    spread = jax.device_put(jax.numpy.ones(64), sharding.NamedSharding(mesh, sharding.PartitionSpec("x")))
    deleted = jax.numpy.ones(8)
    deleted.delete()
    arrays = [deleted, jax.numpy.ones(8, "bfloat16"), *([spread] if len(jax.devices()) > 1 else [])]
    assert list(map(JaxArrays().memory, arrays)) == [None] * len(arrays)


class Doubled:
    """An array on a GPU, of the shape of jaxlib's."""

    is_deleted = staticmethod(lambda _: False)
    on_device_size_in_bytes = staticmethod(lambda _: 96)
    looks = 0
    ready_after = 0

    def is_ready(self) -> bool:
        self.looks += 1
        return self.looks > self.ready_after

    @property
    def _sharding(self) -> Any:
        return SimpleNamespace(device_set={"cuda:0"})

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"data": (4096, True)}


def test_on_a_gpu_the_interface_for_cuda_tells() -> None:
    assert reading.memory(Doubled()) == MemoryRange(4096, 96)


@pytest.mark.parametrize(("ready_after", "found"), [(2, True), (10**9, False)])
def test_an_array_that_is_being_computed_is_waited_for_in_vain_at_most_briefly(
    monkeypatch: pytest.MonkeyPatch, ready_after: int, found: bool
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(reading, "sleep", slept.append)
    array = Doubled()
    array.ready_after = ready_after
    assert (reading.memory(array) is not None) is found
    assert sum(slept) < 0.05
    assert len(slept) == min(ready_after, 5)


def test_memory_shared_with_numpy_is_counted_once(run: Runner) -> None:
    found = run(JAX_AND_NUMPY, apart=True)
    assert found.verdicts["test_clean"] in FREED
    leaked = found.verdicts.keys() - {"test_clean"}
    sizes = {name: (found.finding(name)["count"], found.finding(name)["bytes"]) for name in leaked}
    assert sizes == {name: (2, 2 * MIB) if name == "test_copies" else (1, MIB) for name in sizes}
    assert {name: len(found.tests[name]["findings"]) for name in sizes} == dict.fromkeys(sizes, 1)
    assert found.finding("test_numpy_from_dlpack")["holder"]["text"] == "test_it.ARRAYS[0] (memory)"
    assert found.finding("test_capsule")["holder"]["text"] == "test_it.CAPSULES[0] (memory)"


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed beside JAX")
def test_memory_shared_with_torch_is_counted_once(run: Runner) -> None:
    found = run(JAX_AND_TORCH, apart=True)
    assert found.verdicts["test_clean"] in FREED
    leaked = found.verdicts.keys() - {"test_clean"}
    sizes = {name: (found.finding(name)["count"], found.finding(name)["bytes"]) for name in leaked}
    assert sizes.pop("test_apart") == (2, 2 * MIB)
    assert sizes == dict.fromkeys(sizes, (1, MIB))
    assert {name: len(found.tests[name]["findings"]) for name in sizes} == dict.fromkeys(sizes, 1)
    roots = {name: found.finding(name)["holder"]["root"] for name in sizes}
    assert roots == {
        "test_array_and_tensor": "test_it.BOTH",
        "test_tensor_over_an_array": "test_it.TENSORS",
        "test_array_over_a_tensor": "test_it.ARRAYS",
        "test_all_three": "test_it.BOTH",
    }
