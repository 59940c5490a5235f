"""The page that `scripts/check-gpu` writes, from figures fed in, and what the script says of bad input. Needs no device."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MACHINE = {
    "name": "NVIDIA H100", "count": 1, "total": 80 << 30, "driver": "580.1", "torch": "2.11.0", "python": "3.12.3",
    "date": "2026-11-23", "stand_in": False, "why": "",
}  # fmt: skip
STAND_IN = {**MACHINE, "name": "CUDA stand-in 0", "stand_in": True}


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.delitem(sys.modules, "gpu_page", raising=False)
    return importlib.import_module("gpu_page")


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    for name in ("gpu_figures", "gpu_page", "gpu_programs", "device_suite"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module("gpu_figures")


def moment(name: str, **sizes: int | None) -> dict[str, Any]:
    columns = ("allocated", "reserved", "in use", "NVML, all", "NVML, this process")
    return {"moment": name, "ms": 1.25, **dict.fromkeys(columns, 0), **sizes}


def feed(figures: Any, monkeypatch: pytest.MonkeyPatch, machine: dict[str, Any], leaked: int = 0) -> None:
    programs = {
        figures.MACHINE: {key: machine[key] for key in ("name", "count", "total", "torch", "why")},
        figures.MOMENTS: {"nvml": "no permission", "moments": [moment("context", reserved=2 << 20)]},
        figures.NOISE: {"devices": 1, "reading_us": {"counters": 8.0}, "moved": {"cuda:0 allocated": [0, 512, -512]}},
    }
    monkeypatch.setattr(figures, "run_program", programs.__getitem__)
    tests = [{"nodeid": f"test_device.py::test_{kind}[0]", "overhead_s": 5e-5} for kind in ("small", "clean")]
    summary = {"leaked": leaked, "noted": 0, "unchecked": 0, "suspects": {"tests": 0, "check_s": 0.0}}
    monkeypatch.setattr(figures, "run_suite", lambda source: {"tests": tests, "summary": summary})


def measure(figures: Any, monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    monkeypatch.setattr(sys, "argv", ["gpu_figures.py", *map(str, arguments)])
    status: int = figures.main()
    return status


def test_what_differs_on_a_device_is_named(page: Any) -> None:
    lines = page.compare_verdicts(
        {
            "basics": {"test_a": "clean", "test_b": "leaked: growing 64 B cuda:0"},
            "pools": {"test_c": "clean"},
            "same": {},
        },
        {"basics": {"test_a": "clean", "test_b": "clean"}, "late": {"test_d": "clean"}, "same": {}},
    )
    assert lines[2:] == [
        "| `basics` | 1 of 2 | test_b: leaked: growing 64 B cuda:0; on the device clean |",
        *("", "As on the stand-in: `same`."),
        *("", "Not run on the device: `pools`."),
        *("", "Not run on the stand-in: `late`."),
    ]


def test_the_page_names_the_device_and_what_was_run(
    figures: Any, page: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    feed(figures, monkeypatch, MACHINE)
    assert measure(figures, monkeypatch, tmp_path, "--page", tmp_path / "early.md") == 0
    assert "| cuda:0 allocated | 2 of 3 | -512 B | 512 B | 0 B |" in (tmp_path / "early.md").read_text("utf-8")
    (tmp_path / "steps").write_text("gpu: passed, 30 s\n")
    verdicts = page.read_verdicts(page.STAND_IN_VERDICTS)
    case = next(iter(verdicts))
    kept = json.dumps({"case": case, "verdicts": verdicts[case]})
    (tmp_path / "verdicts.jsonl").write_text(f'{kept}\n{{"case": "cut o')
    assert page.main(tmp_path, tmp_path / "new" / "page.md") == ""
    text = (tmp_path / "new" / "page.md").read_text("utf-8")
    assert "1 x NVIDIA H100 (81,920.0 MiB), driver " in text
    assert "rehearsal" not in text
    assert "- gpu: passed, 30 s\n" in text
    assert "| cuda:0 | 50 us | 50 us | 0 leaked, 0 noted, 0 unchecked | 0, 0.00 s |" in text
    assert "| context | 1.2 ms | 0 B | 2.0 MiB | 0 B | 0 B | 0 B |" in text
    assert "NVML: no permission." in text
    assert "| cuda:0 allocated | 2 of 3 | -512 B | 512 B | 0 B |" in text
    assert f"As on the stand-in: `{case}`.\n" in text


def test_the_page_of_a_check_that_was_cut_off_says_what_is_missing(page: Any, tmp_path: Path) -> None:
    (tmp_path / "machine.json").write_text(json.dumps(MACHINE))
    (tmp_path / "steps").write_text("gpu: begun, and stopped before its end\n")
    assert page.main(tmp_path, tmp_path / "page.md") == ""
    text = (tmp_path / "page.md").read_text("utf-8")
    assert "- gpu: begun, and stopped before its end\n" in text
    assert [f"- {part}: not run\n" in text for part in page.PARTS] == [part != "gpu" for part in page.PARTS]
    assert text.count(page.NOT_MEASURED) == 3
    assert all(page.NOT_RUN.format(part) in text for part in ("peaks", "models"))
    assert "Not compared: no case has run." in text


def test_the_page_has_the_peaks_of_models_and_what_was_told_wrongly(page: Any) -> None:
    told = {"allocated": 4 << 20, "blocks": 4 << 20, "rows": 1020, "requested": 1024, "unsplit": 512, "unexplained": 0}
    found = {
        "models": {name: [3 << 20, 20 << 20] for name in ("mlp", "LSTM", "GPT")},
        "rows": dict.fromkeys(("mlp", "LSTM", "GPT"), told),
        "estimated": {"mlp": [3 << 19, 0, 3 << 19], "LSTM": [0, 0, 0, "a recurrent layer"]},
    }
    same = "3.0 MiB | 1.0 MiB | 0 B | -4 B | 512 B | 0 B"
    assert page.models(found)[2:] == [
        f"| mlp | {same} | -50.0 % |",
        f"| LSTM | {same} | not checked |",
        f"| GPT | {same} | not run |",
    ]
    wrong = {"test_b.py": ["phase call", "peak 8"], "test_a.py": []}
    assert page.planted_peaks(wrong)[0].startswith("1 of 2 are right")
    assert page.planted_peaks(wrong)[-1] == "| `test_b.py` | phase call, peak 8 |"


def test_a_planted_peak_is_held_to_its_truth(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    planted = importlib.import_module("planted_peaks")
    (tmp_path / "test_a.py").write_text(
        "# truth: line=4|9; category=optimizer state; phase=call; module=; part=1000; peak=990 allocated=1024; why: 1 x [250]\n"
    )
    truth = planted.read_truth(tmp_path / "test_a.py")
    part = {"bytes": 1010, "category": "optimizer state", "created": {"line": 9}, "module": "Net.a"}
    other = {"bytes": 10, "category": "held", "created": None, "module": ""}
    peak = {"bytes": 1024, "moment": {"phase": "call"}, "parts": [other, part]}
    assert planted.what_is_wrong(truth, peak) == []
    assert planted.what_is_wrong(truth, {**peak, "bytes": 1040, "moment": None}) == ["phase None", "peak 1040"]
    assert planted.what_is_wrong({**truth, "module": ["Other"]}, peak) == ["module Net.a"]
    assert planted.what_is_wrong(truth, None) == ["no peak was told"]


def test_a_clean_test_that_is_reported_fails_the_check(
    figures: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    feed(figures, monkeypatch, MACHINE, leaked=1)
    assert measure(figures, monkeypatch, tmp_path) == 1


def test_results_of_another_machine_are_dropped(
    figures: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    feed(figures, monkeypatch, STAND_IN)
    assert measure(figures, monkeypatch, tmp_path, "--machine") == 0
    assert capsys.readouterr().out == "stand-in\n"
    (tmp_path / "steps").write_text("gpu: passed, 30 s\n")
    measure(figures, monkeypatch, tmp_path, "--machine")
    assert (tmp_path / "steps").exists()
    feed(figures, monkeypatch, MACHINE)
    capsys.readouterr()
    assert measure(figures, monkeypatch, tmp_path, "--machine") == 0
    said = capsys.readouterr()
    assert said.out == "device\n"
    assert "name was CUDA stand-in 0 and is NVIDIA H100" in said.err
    assert [path.name for path in tmp_path.iterdir()] == ["machine.json"]


def test_no_device_is_one_line(figures: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    feed(figures, monkeypatch, {**MACHINE, "count": 0, "why": "torch was built without CUDA"})
    with pytest.raises(SystemExit, match=r"no CUDA device: nothing to measure \(torch was built without CUDA\)"):
        measure(figures, monkeypatch, tmp_path, "--machine")
    assert list(tmp_path.iterdir()) == []


def test_a_rehearsal_claims_no_measurement_of_a_device(page: Any, tmp_path: Path) -> None:
    (tmp_path / "machine.json").write_text(json.dumps(STAND_IN))
    real = ROOT / "docs" / "gpu-measurements.md"
    before = real.read_bytes()
    assert "is for figures of a device, and CUDA stand-in 0 is none" in page.main(tmp_path, real)
    assert real.read_bytes() == before
    assert page.main(tmp_path, tmp_path / "page.md") == ""
    assert (
        "**A rehearsal on the stand-in runtime: no figure here is a device's.**" in (tmp_path / "page.md").read_text()
    )
    assert "has no machine.json" in page.main(tmp_path / "none", tmp_path / "page.md")


def run_script(*arguments: str, python: str | Path) -> tuple[int, str]:
    done = subprocess.run(
        ["scripts/check-gpu", *arguments],
        cwd=ROOT, env={**os.environ, "PYTHON": str(python), "PYTHONPATH": ""}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="the script is for Linux")
def test_the_script_names_what_is_missing(page: Any, tmp_path: Path) -> None:
    status, said = run_script("gpu", "cuda", python=sys.executable)
    expected = f"scripts/check-gpu: there is no part cuda: {', '.join(page.PARTS)}, page\n"
    assert (status, said) == (1, expected)
    status, said = run_script(python=tmp_path / "python")
    assert (status, said.splitlines()[-1]) == (1, f"scripts/check-gpu: {tmp_path}/python does not run: set PYTHON")
    venv.create(tmp_path / "bare", symlinks=True)
    bare = tmp_path / "bare" / "bin" / "python"
    expected = f"scripts/check-gpu: {bare} lacks: torch pytest psutil pynvml (of torch with CUDA, pytest, psutil, nvidia-ml-py)\n"
    assert run_script("page", python=bare) == (1, expected)
