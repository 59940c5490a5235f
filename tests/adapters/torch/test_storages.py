"""Storages that outlive their tensors."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.adapters.storages import are_shared_storages, is_storage
from pytest_gpuleak.adapters.torch.framework import TorchArrays, TorchStorages

if TYPE_CHECKING:
    from tests.conftest import Runner

pytestmark = [pytest.mark.torch, pytest.mark.interpreter]

SUITE = """
    import io

    import pytest, torch

    KEPT = []
    MODEL = torch.nn.Linear(100, 100)

    def test_untyped():
        KEPT.append(torch.ones(1 << 20).untyped_storage())

    def test_without_a_tensor():
        KEPT.append(torch.UntypedStorage(1 << 20))

    @pytest.mark.filterwarnings("ignore")
    def test_typed():
        KEPT.append(torch.ones(1 << 10).storage())

    def test_with_its_tensor():
        tensor = torch.ones(1 << 10)
        KEPT.append((tensor, tensor.untyped_storage()))

    def test_of_a_view():
        KEPT.append(torch.ones(1 << 12)[:4].untyped_storage())

    def test_in_a_cycle_with_its_tensor():
        tensor = torch.ones(1 << 11)
        KEPT.append(tensor.untyped_storage())
        cycle = [tensor]
        cycle.append(cycle)

    def test_of_an_older_tensor():
        KEPT.append(MODEL.weight.untyped_storage())

    def test_saves_an_older_model():
        torch.save(MODEL.state_dict(), io.BytesIO())

    def test_lets_go():
        assert torch.ones(100).untyped_storage().nbytes() == 400

    @pytest.fixture(scope="module")
    def shared():
        return torch.nn.Linear(1000, 1000)

    def test_uses_a_shared_model(shared):
        assert shared(torch.zeros(1, 1000)).shape == (1, 1000)

    def test_keeps_what_a_fixture_made(shared):
        KEPT.append(shared.weight.untyped_storage())

    # Last, since it imports the compiler: every search after it walks 120,000 objects more.
    def test_without_memory():
        from torch._subclasses.fake_tensor import FakeTensorMode

        KEPT.append(torch.UntypedStorage(1 << 20, device="meta"))
        KEPT.append(torch.ones(5, device="meta").untyped_storage())
        KEPT.append(torch.UntypedStorage(0))
        with FakeTensorMode():
            KEPT.append(torch.ones(10).untyped_storage())
"""


@pytest.mark.usefixtures("forked")
def test_a_storage_without_a_tensor_is_found(run: Runner) -> None:
    found = run(SUITE, apart=True)
    sizes = {
        "test_untyped": 4 << 20,
        "test_without_a_tensor": 1 << 20,
        "test_typed": 4 << 10,
        "test_with_its_tensor": 4 << 10,
        "test_of_a_view": 4 << 12,
        "test_in_a_cycle_with_its_tensor": 4 << 11,
    }
    assert {name: verdict for name, verdict in found.verdicts.items() if verdict != "clean"} == dict.fromkeys(
        sizes, "leaked"
    )
    for name, size in sizes.items():
        finding = found.finding(name)
        assert (finding["kind"], finding["count"], finding["bytes"], finding["bytes_per_run"]) == (
            "growing", 1, size, size,
        ), name  # fmt: skip
    assert found.holder("test_untyped") == "test_it.KEPT[0]"
    assert found.holder("test_typed") == "test_it.KEPT[6]._untyped_storage"  # after three runs of each of two tests
    (row,) = found.finding("test_untyped")["tensors"]
    assert (row["dtype"], row["shape"]) == ("untyped storage", [4 << 20])
    assert row["created"]["code"] == "KEPT.append(torch.ones(1 << 20).untyped_storage())"
    assert found.finding("test_with_its_tensor")["tensors"][0]["dtype"] == "float32"
    (finding,) = found.fixtures["shared"]["findings"]
    assert (finding["kind"], finding["bytes"], finding["failed"]) == ("retained", 4_000_000, True)


@pytest.mark.usefixtures("forked")
def test_in_scan_mode(run: Runner) -> None:
    """A listing of the whole heap has older storages too; how a new one is read does not depend on the mode."""
    found = run(SUITE, "--gpu-leak-scan=scan", "-k", "typed or cycle or older or lets_go", apart=True)
    leaked = ["test_untyped", "test_typed", "test_in_a_cycle_with_its_tensor"]
    clean = ["test_of_an_older_tensor", "test_saves_an_older_model", "test_lets_go"]
    assert found.verdicts == dict.fromkeys(leaked, "leaked") | dict.fromkeys(clean, "clean")


def test_storages_are_read_and_held_without_being_kept() -> None:
    torch: Any = pytest.importorskip("torch")
    tensors, storages = TorchArrays(), TorchStorages()
    assert tensors.array_type() is not None
    kind = storages.array_type()
    assert kind is not None
    tensor = torch.ones(100)
    storage = tensor.untyped_storage()
    assert type(storage).__mro__[1] is kind
    assert is_storage(storage, [kind])
    assert not is_storage(tensor, [kind])
    assert storages.read(storage) is None, "a tensor shares it"
    assert are_shared_storages([storage], [storages])
    assert not are_shared_storages([storage, tensor], [storages])
    assert storages.storage(storage) == tensors.storage(tensor)
    del tensor
    assert not are_shared_storages([storage], [storages])
    reading = storages.read(storage)
    assert reading is not None
    assert (reading.bytes, reading.storage_bytes, reading.device) == (400, 400, "cpu")
    assert storages.storage_users(storage) == 1
    handle = storages.hold(storage)
    assert handle.alive()
    assert handle.storage == reading.storage
    del storage
    gc.collect()
    assert not handle.alive()
