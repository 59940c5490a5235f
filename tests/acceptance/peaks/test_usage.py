"""Files of peaks that cannot be used: one line before any test runs."""

from __future__ import annotations

import pytest

ENTRY = '[[peak]]\ntest = "test_a"\ndevice = "cpu"\nbytes = 5\n'


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        (None, (), "--gpu-leak-peaks-baseline: *p.toml does not exist; --gpu-leak-update-peaks writes a first one"),
        ("version = 2\n", (), "*p.toml: version = 2 is not accepted, only 1; a newer pytest-gpuleak has written it"),
        ("[[peak]\n", (), "*p.toml: not TOML: *"),
        (f"version = 1\n{ENTRY}{ENTRY}", (), "*entry 2, line 6 (test_a): the same test as entry 1; *"),
        (f"version = 1\n{ENTRY}parts = ['a']\n", (), "*parts = a list is not accepted, only a list of texts *"),
        ("version = 1\nleak = []\n", (), "*unknown key 'leak', accepted are: version, torch, gpu, tolerance, peak"),
        ("version = 1\ngpu = 3\n", ("--gpu-leak-update-peaks",), "*gpu = 3 is not accepted, only a text"),
        ('version = 1\ntolerance = "2"\n', (), "*tolerance = '2' is not accepted, only a percentage *"),
    ],
)
def test_an_unusable_file(pytester: pytest.Pytester, text: str | None, options: tuple[str, ...], said: str) -> None:
    pytester.makepyfile("def test_a(): pass")
    if text is not None:
        (pytester.path / "p.toml").write_text(text, encoding="utf-8")
    result = pytester.runpytest("--gpu-leak-peaks-baseline=p.toml", *options)
    assert result.ret == 4
    result.stderr.fnmatch_lines([f"ERROR: {said}" if not said.startswith("*") else said])


def test_an_update_without_a_file(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_a(): pass")
    result = pytester.runpytest("--gpu-leak-update-peaks")
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*--gpu-leak-update-peaks: there is no file of peaks; name it with *"])


def test_a_run_without_tensors(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_a(): pass")
    options = ("--gpu-leak-peaks-baseline=p.toml", "--gpu-leak-update-peaks")
    result = pytester.runpytest(*options, "--gpu-leak-peaks=1", "-p", "no:cacheprovider")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["gpu-leak: the file of peaks p.toml was not updated: no test has a peak *"])
    assert not (pytester.path / "p.toml").exists()
    result = pytester.runpytest("--gpu-leak-update-peaks", "--no-gpu-leak")
    assert result.ret == 0
