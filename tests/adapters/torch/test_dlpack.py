"""Memory that torch lends through DLPack: capsules, and arrays made of them."""

from __future__ import annotations

import ctypes
import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.adapters.dlpack import capsule_address, lent_memory
from pytest_gpuleak.adapters.registry import own_frameworks
from pytest_gpuleak.heap.budget import Budget

if TYPE_CHECKING:
    from tests.conftest import Runner

pytestmark = pytest.mark.torch

SUITE = """
    import numpy as np
    import torch

    CAPSULES, ARRAYS, BOXES, TENSORS = [], [], [], []
    TABLE = {}

    def array():
        return torch.ones(256, 256)

    def test_capsule():
        CAPSULES.append(torch.utils.dlpack.to_dlpack(array()))

    def test_versioned_capsule():
        CAPSULES.append(array().__dlpack__(max_version=(1, 0)))

    def test_capsule_of_a_slice():
        CAPSULES.append(array()[100:].__dlpack__())

    def test_numpy():
        ARRAYS.append(np.from_dlpack(array()))

    def test_view_of_numpy():
        ARRAYS.append(np.from_dlpack(array())[1:].T)

    def test_numpy_in_a_dict():
        TABLE[len(TABLE)] = np.from_dlpack(array())

    def test_numpy_in_an_untracked_dict():
        BOXES.append({"x": np.from_dlpack(array())})

    def test_tensor_of_a_tensor():
        lent = array()
        TENSORS.append((lent, torch.from_dlpack(lent[100:])))

    def test_capsule_dropped():
        array().__dlpack__()

    def test_numpy_dropped():
        assert np.from_dlpack(array()).sum() == 256 * 256

    def test_tensor_dropped():
        assert torch.from_dlpack(array()).sum() == 256 * 256

    def test_used_capsule():
        capsule = array().__dlpack__()
        torch.from_dlpack(capsule)
        CAPSULES.append(capsule)
"""
HOLDERS = {
    "test_capsule": "test_it.CAPSULES[0] (memory)",
    "test_versioned_capsule": "test_it.CAPSULES[3] (memory)",
    "test_capsule_of_a_slice": "test_it.CAPSULES[6] (memory)",
    "test_numpy": "test_it.ARRAYS[0] (memory)",
    "test_view_of_numpy": "test_it.ARRAYS[3] (memory)",
    "test_numpy_in_a_dict": "test_it.TABLE[0] (memory)",
    "test_numpy_in_an_untracked_dict": "test_it.BOXES[0]['x'] (memory)",
    "test_tensor_of_a_tensor": "test_it.TENSORS[0]",
}


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_who_keeps_lent_memory_is_named_and_the_memory_counted_once(run: Runner) -> None:
    found = run(SUITE, apart=True)
    found.result.assert_outcomes(passed=len(found.tests))
    for name, holder in HOLDERS.items():
        finding = found.finding(name)
        assert (finding["kind"], finding["count"], finding["bytes"]) == ("growing", 1, 256 << 10), name
        assert finding["holder"]["text"].startswith(holder), name
    others = found.verdicts.keys() - HOLDERS.keys()
    assert {name: found.verdicts[name] for name in others} == dict.fromkeys(others, "clean")


def test_a_capsule_states_an_address_until_it_is_used() -> None:
    torch: Any = pytest.importorskip("torch")
    tensor = torch.ones(8)
    for capsule in (tensor.__dlpack__(), tensor.__dlpack__(max_version=(1, 0))):
        assert capsule_address(capsule) == tensor.data_ptr()
        torch.from_dlpack(capsule)
        assert capsule_address(capsule) is None
    assert capsule_address(tensor[2:].__dlpack__()) == tensor.data_ptr() + 8
    assert capsule_address(datetime.datetime_CAPI) is None  # another kind of capsule


def test_only_memory_that_is_wanted_is_looked_for() -> None:
    torch: Any = pytest.importorskip("torch")
    tensor, other = torch.ones(8), torch.ones(8)
    capsules = [tensor.__dlpack__(), other.__dlpack__()]
    find = partial(lent_memory, own_frameworks())
    links = find((tensor,), (), Budget(10**9))
    assert [(link.parent is capsules[0], link.child is tensor, link.edge) for link in links] == [
        (True, True, " (memory)")
    ]
    meta = torch.ones(8, device="meta")
    assert find((meta, [], object()), (), Budget(10**9)) == []
    assert ctypes.sizeof(ctypes.c_void_p) == 8, "the layout of dlpack.h that is read"
