"""The page that `scripts/check-gpu` writes, from figures fed in. Needs no torch and no device."""

from __future__ import annotations

import importlib
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    for name in ("gpu_figures", "gpu_programs", "device_suite"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    torch = types.ModuleType("torch")
    vars(torch).update(cuda=types.SimpleNamespace(is_available=lambda: True), __version__="2.13.0")
    monkeypatch.setitem(sys.modules, "torch", torch)
    return importlib.import_module("gpu_figures")


def moment(name: str, **sizes: int | None) -> dict[str, Any]:
    columns = ("allocated", "reserved", "in use", "NVML, all", "NVML, this process")
    return {"moment": name, "ms": 1.25, **dict.fromkeys(columns, 0), **sizes}


def feed(figures: Any, monkeypatch: pytest.MonkeyPatch, name: str, leaked: int = 0) -> None:
    first = {"name": name, "count": 1, "total": 80 << 30, "nvml": "", "moments": [moment("context", reserved=2 << 20)]}
    noise = {"devices": 1, "reading_us": {"counters": 8.0}, "moved": {"cuda:0 allocated": [0, 512, -512]}}
    monkeypatch.setattr(figures, "run_program", lambda source: first if source is figures.MOMENTS else noise)
    tests = [{"nodeid": f"test_device.py::test_{kind}[0]", "overhead_s": 5e-5} for kind in ("small", "clean")]
    summary = {"leaked": leaked, "noted": 0, "unchecked": 0, "suspects": {"tests": 0, "check_s": 0.0}}
    monkeypatch.setattr(figures, "run_suite", lambda source: {"tests": tests, "summary": summary})


def test_what_differs_on_a_device_is_named(figures: Any) -> None:
    rows = figures.compare_verdicts(
        {"basics": {"test_a": "clean", "test_b": "leaked: growing 64 B cuda:0"}, "pools": {"test_c": "clean"}},
        {"basics": {"test_a": "clean", "test_b": "clean"}, "late": {"test_d": "clean"}},
    )
    assert rows[2:] == [
        "| `basics` | 1 of 2 | test_b: leaked: growing 64 B cuda:0; on the device clean |",
        "| `late` |  | not run on the stand-in |",
        "| `pools` |  | not run on the device |",
    ]


def test_the_page_names_the_device_and_what_was_run(
    figures: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    feed(figures, monkeypatch, "NVIDIA H100")
    (tmp_path / "steps").write_text("tests/gpu: passed, 30 s\n")
    verdicts = figures.read_verdicts(figures.STAND_IN_VERDICTS)
    case = next(iter(verdicts))
    (tmp_path / "cases").write_text(json.dumps({"case": case, "verdicts": verdicts[case]}) + "\n")
    options = ["--steps", str(tmp_path / "steps"), "--cases", str(tmp_path / "cases")]
    monkeypatch.setattr(sys, "argv", ["gpu_figures.py", "--out", str(tmp_path / "new" / "page.md"), *options])
    assert figures.main() == 0
    page = (tmp_path / "new" / "page.md").read_text("utf-8")
    assert "1 x NVIDIA H100 (81,920.0 MiB), driver " in page
    assert "rehearsal" not in page
    assert "- tests/gpu: passed, 30 s\n" in page
    assert "| context | 1.2 ms | 0 B | 2.0 MiB | 0 B | 0 B | 0 B |" in page
    assert "| cuda:0 allocated | 2 of 3 | -512 B | 512 B | 0 B |" in page
    assert f"| `{case}` | {len(verdicts[case])} of {len(verdicts[case])} |  |" in page


def test_a_clean_test_that_is_reported_fails_the_check(figures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    feed(figures, monkeypatch, "NVIDIA H100", leaked=1)
    monkeypatch.setattr(sys, "argv", ["gpu_figures.py"])
    assert figures.main() == 1


def test_a_rehearsal_claims_no_measurement_of_a_device(
    figures: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    feed(figures, monkeypatch, "CUDA stand-in 0")
    page = ROOT / "docs" / "gpu-measurements.md"
    before = page.read_bytes()
    monkeypatch.setattr(sys, "argv", ["gpu_figures.py", "--out", str(page)])
    with pytest.raises(SystemExit, match="is for figures of a device"):
        figures.main()
    assert page.read_bytes() == before
    monkeypatch.setattr(sys, "argv", ["gpu_figures.py"])
    assert figures.main() == 0
    assert "**A rehearsal on the stand-in runtime: no figure here is a device's.**" in capsys.readouterr().out
