"""Budgets where no device is: `--gpu-leak-estimate`, end to end."""

from __future__ import annotations

import importlib
import json
import textwrap
from collections.abc import Callable

import pytest

from pytest_gpuleak.adapters.torch import cuda_estimate

pytestmark = pytest.mark.torch

Estimated = Callable[..., pytest.RunResult]
QUIET = ("-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:hypothesispytest", "-p", "no:flaky")
SUITE = """
    import pytest, torch
    from torch import nn
    max_gpu_mb = pytest.mark.max_gpu_mb

    @max_gpu_mb(20)
    def test_held():
        a = torch.ones(1024, 1024)
        b, c = a + 1, a + 2

    @max_gpu_mb(10)
    def test_over():
        a = torch.ones(1024, 1024)
        b, c = a + 1, a + 2

    @max_gpu_mb(12)
    def test_near():
        a = torch.ones(1024, 1024)
        b, c = a + 1, a + 2

    @max_gpu_mb(20)
    def test_recurrent():
        nn.LSTM(4, 4)(torch.ones(2, 3, 4))

    @max_gpu_mb(20)
    def test_traced():
        assert torch.jit.trace(lambda a: a * 2 + 1, torch.ones(4))(torch.ones(2)).tolist() == [3, 3]

    @max_gpu_mb(20, total=True)
    def test_all_there_is():
        torch.ones(4)

    @max_gpu_mb(6)
    def test_copied():
        a = torch.ones(1024, 1024)
        b = a.to("cpu", copy=True)

    @pytest.fixture(scope="module")
    def dataset():
        return torch.ones(4, 1024, 1024)

    @max_gpu_mb(6)
    def test_wider_fixture(dataset):
        batch = dataset[0].clone()

    def test_no_budget():
        assert torch.utils._python_dispatch._get_current_dispatch_mode() is None
"""
REASONS = {
    "estimated as about 12.0 MiB (+-5 %), too near to 12.0 MiB",
    "not estimated, since a recurrent layer has run, of which cuDNN takes an unknown amount",
    "not estimated, since torch.jit.trace has run",
    "no device was used, and an estimate is of what a test adds on one device",
    "estimated as 4.0 MiB to 8.0 MiB (+-5 %), where 6.0 MiB are allowed: a tensor was copied to the device that it was on, of which one may be the host's",
}


@pytest.fixture(autouse=True, scope="module")
def compiler() -> None:
    """Import torch's compiler, before pytester notes the modules: a run would import it a second time, which fails."""
    importlib.import_module("torch._dynamo")


@pytest.fixture
def estimated(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Estimated:
    """Runs a test file's source in this process, where other tests may have registered the simulated accelerator."""
    monkeypatch.setattr(cuda_estimate, "_has_device", lambda _: False)

    def start(source: str, *arguments: str) -> pytest.RunResult:
        pytester.makepyfile(test_it=textwrap.dedent(source))
        return pytester.runpytest_inprocess(*QUIET, "-rA", *arguments)

    return start


def unchecked(result: pytest.RunResult) -> str:
    """The summary's line on budgets."""
    return next((line for line in result.outlines if "not checked" in line), "")


def check_estimates(result: pytest.RunResult) -> None:
    result.assert_outcomes(passed=8, failed=1)
    result.stdout.fnmatch_lines(
        [
            "max_gpu_mb: estimated on the CPU: about 12.0 MiB (+-5 %), 2.0 MiB over the budget of 10 MiB",
            "*8.0 MiB  2 x float32 ?1024, 1024?  held*",
        ]
    )
    result.stdout.no_fnmatch_line("*traceback entries are hidden*")
    line = unchecked(result)
    assert line.startswith("gpu-leak: 5 budgets were not checked: ")
    assert {reason for reason in REASONS if reason in line} == REASONS


def test_held_over_near_and_not_estimated(estimated: Estimated) -> None:
    check_estimates(estimated(SUITE, "--gpu-leak-estimate"))


def test_in_workers_of_xdist(pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    pytester.makepyfile(test_it=textwrap.dedent(SUITE))
    check_estimates(pytester.runpytest_subprocess(*QUIET, "-rA", "-p", "xdist", "-n1", "--gpu-leak-estimate"))


def test_by_the_ini_and_beside_the_leak_check(estimated: Estimated, pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ngpu_leak_estimate = true\ngpu_leak_max_mb = 10\n")
    source = """
        import torch

        def test_over():
            a = torch.ones(1024, 1024)
            b, c = a + 1, a + 2

        def test_held():
            torch.ones(1024)
    """
    result = estimated(source, "--gpu-leak", "--gpu-leak-report=report.json")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["--gpu-leak-max-mb: estimated on the CPU: about 12.0 MiB*"])
    assert not unchecked(result)
    report = json.loads((pytester.path / "report.json").read_text(encoding="utf-8"))
    (finding,) = (found for test in report["tests"] for found in test["findings"])
    assert (finding["kind"], finding["device"], finding["bytes"]) == ("budget", "cpu", 12 << 20)
    assert (finding["peak"]["estimated"], finding["peak"]["bytes"]) == (True, 12 << 20)
    switched_off = estimated(source, "--gpu-leak", "-o", "gpu_leak_estimate=false")
    switched_off.assert_outcomes(passed=2)
    assert unchecked(switched_off) == "gpu-leak: 2 budgets were not checked: no device was used"


@pytest.mark.usefixtures("forked")
def test_a_re_run_that_peaks_lower_is_told_beside_the_estimate(estimated: Estimated) -> None:
    result = estimated(
        """
        import pytest, torch
        CACHED = []

        @pytest.mark.max_gpu_mb(10)
        def test_fills_a_cache():
            if not CACHED:
                CACHED.append(1)
                torch.ones(16 * 2**18)
            torch.ones(4 * 2**18)
        """,
        "--gpu-leak-estimate",
    )
    result.stdout.fnmatch_lines(
        ["*not told: the first run is estimated at 16.0 MiB, its re-run, of which the parts are, at 4.0 MiB"]
    )


def test_what_the_re_run_sets_up_again_is_no_growth_of_a_fixture(pytester: pytest.Pytester) -> None:
    source = """
        import pytest, torch

        KEPT = []

        @pytest.fixture(scope="module")
        def kept():
            KEPT.append(torch.ones(8))

        @pytest.mark.max_gpu_mb(1)
        def test_over(kept):
            torch.ones(1024, 1024)
    """
    pytester.makepyfile(test_it=textwrap.dedent(source))
    result = pytester.runpytest_subprocess(*QUIET, "--gpu-leak", "--gpu-leak-estimate")
    result.stdout.fnmatch_lines(["*recorded in a re-run*", "gpu-leak: 0 leaked, 1 unchecked, *"])


def test_a_setup_that_fails_ends_the_record(estimated: Estimated) -> None:
    result = estimated(
        """
        import pytest, torch

        @pytest.fixture
        def broken():
            torch.ones(4)
            raise ValueError("broken")

        @pytest.mark.max_gpu_mb(1)
        def test_broken(broken): pass

        def test_after():
            assert torch._C._len_torch_dispatch_stack() == 0
        """,
        "--gpu-leak-estimate",
    )
    result.assert_outcomes(passed=1, errors=1)


def test_a_fixtures_mode_may_end_after_the_record(estimated: Estimated) -> None:
    result = estimated(
        """
        import pytest, torch
        from torch.utils._python_dispatch import TorchDispatchMode

        class Counting(TorchDispatchMode):
            count = 0
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                self.count += 1
                return func(*args, **(kwargs or {}))

        @pytest.fixture
        def counting():
            with Counting() as mode:
                yield mode
            assert torch._C._len_torch_dispatch_stack() == 0

        @pytest.mark.max_gpu_mb(5)
        def test_counted(counting):
            a = torch.ones(1024, 1024)
            b = a + 1
            assert counting.count == 2
        """,
        "--gpu-leak-estimate",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["max_gpu_mb: estimated on the CPU: about 8.0 MiB*"])


@pytest.mark.usefixtures("forked")
def test_compiled_code_is_compiled_as_without(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest, torch

        frames = []

        def backend(graph, inputs):
            frames.append(graph)
            return graph

        double = torch.compile(lambda a: a * 2, backend=backend)

        @pytest.mark.max_gpu_mb(20)
        def test_compiles():
            assert double(torch.ones(4)).tolist() == [2] * 4
            assert len(frames) == 1

        @pytest.mark.max_gpu_mb(20)
        def test_runs_what_was_compiled():
            before = len(frames)
            assert double(torch.ones(4)).tolist() == [2] * 4
            assert len(frames) == max(1, before)

        @pytest.mark.max_gpu_mb(20)
        def test_steps():
            layer = torch.nn.Linear(4, 4)
            optimizer = torch.optim.Adam(layer.parameters())
            layer(torch.ones(1, 4)).sum().backward()
            optimizer.step()
        """
    )
    result = pytester.runpytest_subprocess(*QUIET, "--gpu-leak-estimate")
    result.assert_outcomes(passed=3)
    expected = "gpu-leak: 2 budgets were not checked: not estimated, since code compiled by torch.compile has run"
    assert unchecked(result) == expected
