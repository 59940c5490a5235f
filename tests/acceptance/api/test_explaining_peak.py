"""`explain_peak(function, *args)` and `watch(peak=True)`: what filled the memory, asked outside of a test run."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

import pytest_gpuleak
from pytest_gpuleak import PeakExplanation, explain_peak, watch


def script(source: str) -> list[str]:
    """The lines that a program prints which runs in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)], capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout.splitlines()


def test_without_torch_nothing_is_told_and_torch_is_not_imported() -> None:
    printed = script(
        """
        import sys
        from pytest_gpuleak import explain_peak
        called = []
        found = explain_peak(called.append, 3)
        print(called, found.bytes, found.parts, found.moment, "torch" in sys.modules)
        print(found)
        """
    )
    assert printed == ["[3] 0 () None False", "no tensor was made", "  not told: torch had not been imported"]


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning")
def test_what_is_not_told_is_said_where_no_tensor_is_known() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    found = explain_peak(torch.jit.trace, lambda array: array * 2, torch.ones(4))
    assert (found.device, found.bytes, found.parts, found.peaks) == ("", 0, (), {})
    assert str(found).splitlines() == ["no tensor was made", "  not told: what torch.jit.trace ran is not in the parts"]


def test_an_error_reaches_the_caller() -> None:
    with pytest.raises(ZeroDivisionError):
        explain_peak(lambda: 1 // 0)


def test_watch_loads_nothing_of_it() -> None:
    printed = script(
        """
        import sys
        from pytest_gpuleak import watch
        with watch() as leaks:
            pass
        print(leaks.peak, [name for name in sys.modules if "peak_mode" in name])
        """
    )
    assert printed == ["None []"]


@pytest.mark.torch
def test_a_model_s_peak_as_text_and_as_a_table() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from tests.acceptance.api.peak_model import LINES, evaluate

    found = explain_peak(evaluate, 512)
    assert isinstance(found, PeakExplanation)
    assert found.device == "cpu"
    assert found.bytes == sum(part.bytes for part in found.parts)
    assert found.moment is not None
    assert (found.moment.phase, found.moment.module) == ("forward", "Net.body.3")
    first, *lines = str(found).splitlines()
    assert first == "peak of 20.6 MiB on cpu, above what was there before"
    file = "tests/acceptance/api/peak_model.py"
    at = f"{file}:{LINES['forward']}"
    assert [line.split() for line in lines] == [
        ["when", "forward,", at, "in", "forward,", "module", "Net.body.3", "(tanh.default)"],
        ["16.0", "MiB", "4", "x", "float32", "[512,", "2048]", "activation", at, "Net.body.*"],
        ["4.0", "MiB", "1", "x", "float32", "[512,", "2048]", "temporary", at, "Net.first"],
        ["512.0", "KiB", "1", "x", "float32", "[2048,", "64]", "parameter", f"{file}:{LINES['first']}", "Net.first"],
        ["136.0", "KiB", "2", "smaller", "activation", "128.0", "KiB,", "parameter", "8.0", "KiB"],
        ["activations:", "no", "backward", "pass", "used", "them", "(torch.no_grad", "keeps", "none)"],
    ]
    table = found._repr_html_()
    assert table.count("<tr>") == 5
    assert "<td>4 x float32 [512, 2048]</td><td>activation</td>" in table
    assert repr(found) == str(found)


@pytest.mark.torch
def test_watch_tells_the_peak_beside_what_was_left() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    kept = []
    with watch(peak=True) as leaks:
        kept.append(torch.ones(2**18))
        torch.ones(2**20)
    assert [found.bytes for found in leaks] == [2**20]
    assert leaks.peak is not None
    assert leaks.peak.bytes == 5 * 2**20
    assert [part.category for part in leaks.peak.parts] == ["temporary", "held"]


@pytest.mark.torch
def test_a_block_that_raises_has_no_peak() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    with pytest.raises(RuntimeError), watch(peak=True) as leaks:
        torch.ones(8).view(3)
    assert leaks.peak is None


def test_the_names_are_on_the_package() -> None:
    assert {"explain_peak", "PeakExplanation"} <= set(dir(pytest_gpuleak))
