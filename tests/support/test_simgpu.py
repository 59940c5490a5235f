"""The simulated accelerator behaves as a device of torch's does, where the tests rely on it."""

from __future__ import annotations

import copy
import gc
import subprocess
import sys
import textwrap
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import simgpu

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import Runner

pytestmark = pytest.mark.torch
MIB = simgpu.MIB


@pytest.fixture
def torch() -> Iterator[Any]:
    """torch with fresh devices."""
    module = pytest.importorskip("torch")
    simgpu.install()
    gc.collect()
    simgpu.reset()
    yield module
    simgpu.reset()


def test_tensors_live_on_the_device_and_come_back_from_it(torch: Any) -> None:
    tensor = torch.arange(6.0).reshape(2, 3).to("simgpu:1")
    assert str(tensor.device) == "simgpu:1"
    assert (tensor * 2 + 1).sum().item() == 36
    assert tensor.t()[1:].cpu().tolist() == [[1.0, 4.0], [2.0, 5.0]]
    assert torch.cat([tensor, tensor.to("simgpu:0").to("simgpu:1")]).shape == (4, 3)
    assert torch.randn(3, device="simgpu").device.index == 0


@pytest.mark.parametrize("device", ["simgpu:0", "simgpu:1"])
def test_a_step_of_training_leaves_the_model_the_optimiser_and_the_workspace(torch: Any, device: str) -> None:
    layers = [torch.nn.Conv2d(1, 2, 3), torch.nn.Tanh(), torch.nn.Flatten(), torch.nn.Linear(8, 1)]
    there = torch.nn.Sequential(*layers)
    model = copy.deepcopy(there).to(device)
    for each, where in ((there, "cpu"), (model, device)):
        optimiser = torch.optim.Adam(each.parameters(), lr=0.1)
        each(torch.ones(2, 1, 4, 4, device=where)).square().sum().backward()
        optimiser.step()
    for expected, parameter in zip(there.parameters(), model.parameters(), strict=True):
        assert str(parameter.grad.device) == device
        torch.testing.assert_close(parameter.detach().cpu(), expected.detach())
    assert torch.simgpu.memory_allocated(device) > simgpu.WORKSPACE_BYTES
    del model, each, optimiser, parameter
    gc.collect()
    assert torch.simgpu.memory_allocated(device) == simgpu.WORKSPACE_BYTES
    simgpu.clear_workspaces()
    assert torch.simgpu.memory_allocated(device) == 0


def test_memory_that_only_cpp_holds_is_counted_until_it_is_let_go(torch: Any) -> None:
    weight = torch.ones(1000, device="simgpu:0", requires_grad=True)
    loss = (weight.exp() * 2).sum()  # the graph keeps the exponentials, which no Python object refers to
    assert torch.simgpu.memory_allocated(0) == 4096 + 4096 + 512
    loss.backward()
    assert torch.simgpu.memory_allocated(0) == 4096 + 4096 + 512  # the gradient instead
    del loss
    weight.grad = None
    assert torch.simgpu.memory_allocated(0) == 4096


def test_blocks_are_rounded_cached_and_used_again(torch: Any) -> None:
    device = torch.simgpu
    large = torch.empty(9 * MIB, dtype=torch.uint8, device="simgpu:0")
    small = torch.empty(1, device="simgpu:0")
    assert (device.memory_allocated(0), device.memory_reserved(0)) == (9 * MIB + 512, 9 * MIB + simgpu.SEGMENT)
    assert device.memory_stats(0)["requested_bytes.all.current"] == 9 * MIB + 4
    del large
    torch.empty(9 * MIB, dtype=torch.uint8, device="simgpu:0")
    assert device.memory_allocated(0) == 512
    assert device.max_memory_allocated(0) == 9 * MIB + 512
    assert device.memory_reserved(0) == 9 * MIB + simgpu.SEGMENT
    device.empty_cache()
    assert device.memory_reserved(0) == simgpu.SEGMENT
    del small
    device.empty_cache()
    assert device.memory_reserved(0) == 0
    device.reset_peak_memory_stats(0)
    assert (device.max_memory_allocated(0), device.max_memory_reserved(0)) == (0, 0)


def test_memory_runs_out_at_the_capacity(torch: Any) -> None:
    simgpu.set_capacity(0, 64 * MIB)
    simgpu.set_other_use(0, 16 * MIB)
    kept = torch.empty(20 * MIB, dtype=torch.uint8, device="simgpu:0")
    with pytest.raises(
        torch.OutOfMemoryError, match=r"Tried to allocate 30\.00 MiB\. GPU 0 .* 64\.00 MiB of which"
    ) as error:
        torch.empty(30 * MIB, dtype=torch.uint8, device="simgpu:0")
    assert "Process 4711 has 16.00 MiB" in str(error.value)
    assert kept.numel()
    assert torch.simgpu.memory_stats(0)["num_ooms"] == 1
    assert torch.simgpu.mem_get_info(0) == (64 * MIB - 16 * MIB - 20 * MIB - simgpu.CONTEXT_BYTES, 64 * MIB)


def test_cached_memory_makes_room_before_it_runs_out(torch: Any) -> None:
    simgpu.set_capacity(0, 64 * MIB)
    torch.empty(30 * MIB, dtype=torch.uint8, device="simgpu:0")  # goes at once, and stays cached
    assert torch.simgpu.memory_reserved(0) == 30 * MIB
    assert torch.empty(40 * MIB, dtype=torch.uint8, device="simgpu:0").numel()


def test_frees_arrive_late(torch: Any) -> None:
    tensor = torch.ones(100, device="simgpu:0")
    simgpu.set_free_delay(0.05)
    del tensor
    assert torch.simgpu.memory_allocated(0) == 512
    time.sleep(0.06)
    assert torch.simgpu.memory_allocated(0) == 0


def test_memory_outside_of_tensors(torch: Any) -> None:
    inside, outside = simgpu.raw_allocate(0, 1000), simgpu.raw_allocate(0, 5 * MIB, counted=False)
    assert torch.simgpu.memory_allocated(0) == 1024
    assert simgpu.process_use(0) == simgpu.CONTEXT_BYTES + simgpu.SEGMENT + 5 * MIB
    simgpu.raw_free(0, inside)
    simgpu.raw_free(0, outside)
    assert torch.simgpu.memory_allocated(0) == 0
    assert simgpu.process_use(0) == simgpu.CONTEXT_BYTES + simgpu.SEGMENT


def test_a_device_fails_and_counters_lie(torch: Any) -> None:
    kept = torch.ones(4, device="simgpu:1")
    simgpu.skew_counters(1, 1024)
    assert torch.simgpu.memory_allocated(1) == -512
    simgpu.break_device(1)
    with pytest.raises(RuntimeError, match="launch failure"):
        torch.simgpu.memory_allocated(1)
    with pytest.raises(RuntimeError, match="launch failure"):
        torch.ones(1, device="simgpu:1")
    assert torch.simgpu.memory_allocated(0) == 0
    del kept  # is given back in silence, as a storage's deleter must


def test_installing_again_keeps_the_devices_even_for_a_module_imported_anew(torch: Any) -> None:
    tensor = torch.ones(4, device="simgpu:0")
    here = sys.modules.pop("tests.support.simgpu")
    try:
        import importlib

        again = importlib.import_module("tests.support.simgpu")
        assert again is not here
        again.install()
        assert sys.modules["tests.support.simgpu"] is here
        assert again.memory_allocated(0) == 512 == here.memory_allocated(0)
    finally:
        sys.modules["tests.support.simgpu"] = here
    assert tensor.numel() == 4


def test_users_tests_in_this_process_share_its_devices(run: Runner, torch: Any) -> None:
    found = run(
        """
        from tests.support import simgpu
        simgpu.install()
        import torch
        KEPT = []

        def test_leaks():
            KEPT.append(torch.ones(100, device="simgpu:1"))

        def test_clean():
            torch.nn.Linear(4, 4, device="simgpu:0")(torch.ones(1, 4, device="simgpu:0")).sum().backward()
        """
    )
    assert found.verdicts == {"test_leaks": "leaked", "test_clean": "clean"}
    assert found.finding("test_leaks")["device"] == "simgpu:1"
    assert torch.simgpu is simgpu


@pytest.mark.slow
def test_tensors_may_outlive_the_interpreter() -> None:
    pytest.importorskip("torch")
    program = """
        import builtins
        from tests.support import simgpu
        simgpu.install()
        import torch
        builtins.kept = torch.ones(10, device="simgpu:0", requires_grad=True)
        builtins.loss = (builtins.kept * 2).sum()
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
