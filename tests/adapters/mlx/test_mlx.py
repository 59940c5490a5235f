"""MLX's arrays, evaluated or not, end to end."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Runner

pytestmark = pytest.mark.skipif(find_spec("mlx") is None, reason="mlx is not installed")

SUITE = """
    import functools

    import mlx.core as mx
    import mlx.nn as nn
    import mlx.optimizers as optim
    import numpy as np
    import pytest

    KEPT, VIEWS, NUMPY, CAPSULES, LAZY, LOSSES = [], [], [], [], [], []
    CACHE = {}
    WEIGHTS = mx.random.normal((512, 512))
    mx.eval(WEIGHTS)

    def array(*shape):
        made = mx.zeros(shape) + 1
        mx.eval(made)
        return made

    class Model:
        history = {}

        def __init__(self):
            self.weight = array(256, 256)

        @functools.lru_cache
        def size(self):
            return 1

    def test_list():
        KEPT.append(array(256, 256))

    def test_large():
        KEPT.append(array(2048, 2048))

    def test_class_attribute():
        Model.history[len(Model.history)] = {"x": array(256, 256)}

    def test_cached_method():
        Model().size()

    def test_closure():
        made = array(256, 256)
        KEPT.append(lambda: made)

    def test_view():
        part = array(1024, 1024)[:2]
        mx.eval(part)
        VIEWS.append(part)

    def test_view_and_its_base():
        whole = array(64, 64)
        part = whole[:2]
        mx.eval(part)
        VIEWS.append((whole, part))

    def test_numpy():
        NUMPY.append(np.array(array(256, 256), copy=False))

    def test_numpy_from_dlpack():
        NUMPY.append(np.from_dlpack(array(256, 256)))

    def test_capsule():
        CAPSULES.append(array(256, 256).__dlpack__())

    def test_lazy():
        LAZY.append(array(512, 512) + 1)

    def test_lazy_loss():
        LOSSES.append((array(512, 512) * WEIGHTS).sum())

    def test_retained():
        if "table" not in CACHE:
            CACHE["table"] = array(1024, 1024)

    def test_keeps_a_little_once():
        if "little" not in CACHE:
            CACHE["little"] = array(8)

    def test_dropped():
        array(1024, 1024)

    def test_dropped_unevaluated():
        (mx.ones((1024, 1024)) * 2).sum()

    def test_large_and_dropped():
        array(4096, 1024)

    def test_random():
        mx.eval(mx.random.normal((1024, 1024)))

    def test_random_unevaluated():
        mx.random.normal((1024, 1024))

    def test_seeds():
        mx.random.seed(3)
        assert mx.random.uniform().item() != mx.random.uniform().item()

    def test_gradient():
        mx.eval(mx.grad(lambda w: (w * w).sum())(WEIGHTS))

    def test_compiled():
        mx.eval(mx.compile(lambda a: a * 2 + 1)(WEIGHTS))

    def test_asynchronous():
        mx.async_eval(WEIGHTS @ WEIGHTS)

    def test_copies_to_numpy():
        np.array(WEIGHTS).sum()

    def test_view_of_an_older_array():
        mx.eval(WEIGHTS[1:])

    def test_trains():
        model = nn.Linear(64, 64)
        optimizer = optim.Adam(1e-3)
        _, gradients = nn.value_and_grad(model, lambda m, x: m(x).sum())(model, mx.ones((4, 64)))
        optimizer.update(model, gradients)
        mx.eval(model.parameters(), optimizer.state)
"""
LEAKS = {
    "test_list": (256 << 10, "test_it.KEPT[0]"),
    "test_large": (16 << 20, "test_it.KEPT[2]"),
    "test_class_attribute": (256 << 10, "test_it.Model.history[0]['x']"),
    "test_cached_method": (256 << 10, "test_it.Model.size (cache key)[0].weight"),
    "test_closure": (256 << 10, "test_it.KEPT[4].__closure__[0].cell_contents"),
    "test_view": (4 << 20, "test_it.VIEWS[0]"),
    "test_view_and_its_base": (16 << 10, "test_it.VIEWS[2]"),
    "test_numpy": (256 << 10, "test_it.NUMPY[0].base"),
    "test_numpy_from_dlpack": (256 << 10, "test_it.NUMPY[2] (memory)"),
    "test_capsule": (256 << 10, "test_it.CAPSULES[0] (memory)"),
}
CLEAN = ["test_dropped", "test_dropped_unevaluated", "test_large_and_dropped", "test_random", "test_random_unevaluated",
         "test_seeds", "test_gradient", "test_compiled", "test_asynchronous", "test_copies_to_numpy",
         "test_view_of_an_older_array", "test_trains"]  # fmt: skip


@pytest.mark.parametrize("mode", ["epoch", "scan"])
def test_what_is_left_behind(run: Runner, mode: str) -> None:
    found = run(SUITE, f"--gpu-leak-scan={mode}", apart=True)
    found.result.assert_outcomes(passed=len(found.tests))
    for name, (size, holder) in LEAKS.items():
        finding = found.finding(name)
        assert (finding["kind"], finding["count"], finding["bytes"], finding["bytes_per_run"], finding["device"]) == (
            "growing", 1, size, size, "mlx",
        ), name  # fmt: skip
        assert finding["holder"]["text"].startswith(holder), name
    assert found.finding("test_retained")["kind"] == "retained"
    assert found.finding("test_retained")["bytes"] == 4 << 20
    assert {name: found.verdicts[name] for name in CLEAN} == dict.fromkeys(CLEAN, "clean")
    assert found.verdicts["test_keeps_a_little_once"] == "noted"
    assert found.report["environment"]["mlx"]


def test_a_lazy_array_is_found_with_the_inputs_that_it_keeps(run: Runner) -> None:
    found = run(SUITE, "-k", "lazy", apart=True)
    for name, list_name in (("test_lazy", "LAZY"), ("test_lazy_loss", "LOSSES")):
        growing, inputs = sorted(found.tests[name]["findings"], key=lambda finding: str(finding["kind"]))
        assert (growing["kind"], growing["count"], growing["bytes"]) == ("growing", 1, 0)
        assert growing["tensors"][0]["dtype"] == "float32, not evaluated"
        assert "mx.eval()" in growing["hint"]
        assert inputs["kind"] == "unattributed"
        assert abs(inputs["bytes_per_run"] - (1 << 20)) < 1024  # and a few numbers that constants take
        assert inputs["holder"]["text"] == growing["holder"]["text"] == f"test_it.{list_name}[0]"


def test_the_host_is_not_charged_with_the_same_memory(run: Runner) -> None:
    found = run(SUITE, "--gpu-leak-host-mb=4", "-k", "test_large or test_retained", apart=True)
    assert [finding["kind"] for finding in found.tests["test_large"]["findings"]] == ["growing"]
    assert found.verdicts["test_large_and_dropped"] == "clean"
    memory = found.tests["test_large"]["memory"]["mlx"]
    assert memory["allocated_after"] - memory["allocated_before"] == 16 << 20
    assert memory["reserved_after"] >= memory["allocated_after"]


def test_a_rerun_draws_no_random_numbers_of_the_next_test(run: Runner) -> None:
    source = """
    import json
    import mlx.core as mx

    KEPT = []
    DRAWN = []
    mx.random.seed(7)

    def test_keeps():
        KEPT.append(mx.random.normal((8,)))
        mx.eval(KEPT)

    def test_draws():
        value = mx.random.uniform().item()
        mx.random.seed(7)
        mx.eval(mx.random.normal((8,)))
        assert mx.random.uniform().item() == value
    """
    found = run(source, apart=True)
    found.result.assert_outcomes(passed=2)
    assert found.verdicts == {"test_keeps": "leaked", "test_draws": "clean"}


def test_what_fails_inside_of_mlx_breaks_no_run(run: Runner) -> None:
    source = """
    import sys
    from unittest import mock

    import mlx.core as mx
    import pytest

    KEPT = []

    def array():
        made = mx.zeros((256, 256)) + 1
        mx.eval(made)
        return made

    class Loud(type(array())):
        @property
        def nbytes(self):
            raise RuntimeError("user code")

        __repr__ = __bool__ = __eq__ = __len__ = None

    def test_a_tracer_that_escapes():
        def loss(x):
            KEPT.append(x * 2)
            return x.sum()
        mx.eval(mx.grad(loss)(array()))

    def test_without_elements():
        KEPT.append(mx.zeros((0, 4)))
        KEPT.append(array().astype(mx.bfloat16))
        mx.eval(KEPT)

    def test_mocked(monkeypatch):
        counters = mock.Mock(side_effect=RuntimeError)
        for name in ("get_active_memory", "get_array_buffer_size", "synchronize"):
            monkeypatch.setattr(mx, name, counters)
        monkeypatch.setitem(sys.modules, "mlx.core.random", mock.MagicMock())
        KEPT.append(array())

    def test_removed(monkeypatch):
        for name in [name for name in sys.modules if name.startswith("mlx")]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "mlx", None)
        KEPT.append(array())

    def test_never_called():
        assert KEPT
    """
    found = run(source, apart=True)
    found.result.assert_outcomes(passed=5)
    assert {name: found.verdicts[name] for name in ("test_mocked", "test_removed", "test_a_tracer_that_escapes")} == {
        "test_mocked": "leaked",
        "test_removed": "leaked",
        "test_a_tracer_that_escapes": "leaked",
    }
    assert found.finding("test_without_elements")["count"] == 1


def test_an_older_mlx_does_not_tell_what_is_evaluated(run: Runner) -> None:
    source = """
    import mlx.core as mx

    del mx.get_array_buffer_size
    KEPT = []

    def test_lazy():
        KEPT.append(mx.zeros((256, 256)) + 1)

    def test_evaluated():
        KEPT.append(mx.zeros((128, 256)) + 1)
        mx.eval(KEPT[-1])

    def test_dropped():
        mx.eval(mx.zeros((128, 256)) + 1)
    """
    found = run(source, apart=True)
    for name, size in (("test_lazy", 256 << 10), ("test_evaluated", 128 << 10)):
        finding = found.finding(name)
        assert (finding["kind"], finding["bytes"], finding["tensors"][0]["dtype"]) == ("growing", size, "float32")
    assert found.verdicts["test_dropped"] == "clean"


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_memory_that_mlx_lends_to_torch_is_counted_once(run: Runner) -> None:
    source = """
    import mlx.core as mx
    import torch

    TENSORS, PAIRS = [], []

    def array():
        made = mx.zeros((256, 256)) + 1
        mx.eval(made)
        return made

    def test_tensor():
        TENSORS.append(torch.from_dlpack(array()))

    def test_both():
        made = array()
        PAIRS.append((made, torch.from_dlpack(made)))

    def test_dropped():
        assert torch.from_dlpack(array()).sum() == 256 * 256
    """
    found = run(source, apart=True)
    assert found.verdicts["test_dropped"] == "clean"
    for name, holder in (("test_tensor", "test_it.TENSORS[0]"), ("test_both", "test_it.PAIRS[0]")):
        finding = found.finding(name)
        assert (finding["kind"], finding["device"], finding["count"], finding["bytes"]) == (
            "growing", "mlx", 1, 256 << 10,
        )  # fmt: skip
        assert finding["holder"]["text"].startswith(holder)
