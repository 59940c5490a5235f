"""Files of peaks that cannot be used: one line before any test runs. Which are not: tests/baseline/test_peaks_file.py."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        (
            None,
            (),
            "ERROR: --gpu-leak-peaks-baseline: *p.toml does not exist; --gpu-leak-update-peaks writes a first one",
        ),
        ("version = 1\ngpu = 3\n", ("--gpu-leak-update-peaks",), "*p.toml: gpu = 3 is not accepted, only a text"),
    ],
)
def test_an_unusable_file(pytester: pytest.Pytester, text: str | None, options: tuple[str, ...], said: str) -> None:
    pytester.makepyfile("def test_a(): pass")
    if text is not None:
        (pytester.path / "p.toml").write_text(text, encoding="utf-8")
    result = pytester.runpytest("--gpu-leak-peaks-baseline=p.toml", *options)
    assert result.ret == 4
    result.stderr.fnmatch_lines([said])


def test_an_update_without_a_file(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_a(): pass")
    result = pytester.runpytest("--gpu-leak-update-peaks")
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*--gpu-leak-update-peaks: there is no file of peaks; name it with *"])


@pytest.mark.parametrize("imports", ["", pytest.param("import torch", marks=pytest.mark.torch)], ids=["none", "torch"])
def test_a_run_without_tensors(pytester: pytest.Pytester, imports: str) -> None:
    if imports:
        pytest.importorskip("torch", reason="torch is not installed")
    pytester.makepyfile(f"{imports}\ndef test_a(): pass")
    options = ("--gpu-leak-peaks-baseline=p.toml", "--gpu-leak-update-peaks")
    result = pytester.runpytest(*options, "--gpu-leak-peaks=1", "-p", "no:cacheprovider")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["gpu-leak: the file of peaks p.toml was not updated: no test has a peak *"])
    assert not (pytester.path / "p.toml").exists()
    result = pytester.runpytest("--gpu-leak-update-peaks", "--no-gpu-leak")
    assert result.ret == 0
