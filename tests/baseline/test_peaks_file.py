"""The file of peaks: what is written is read back, and an update changes what has changed."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_gpuleak.baseline.peaks import (
    LEAST,
    Made,
    Peaks,
    dump_peaks,
    key_of,
    load_peaks,
    parse_peaks,
    update_peaks,
)
from pytest_gpuleak.baseline.toml_file import UnusableBaseline
from pytest_gpuleak.model.peak_changes import KnownPeak, PeakRow

if TYPE_CHECKING:
    from pathlib import Path

WORDS = st.text(
    st.characters(codec="utf-8", exclude_characters="|\0", exclude_categories=["Cc", "Zs", "Zl", "Zp"]), min_size=1
)
ROWS = st.builds(
    PeakRow, st.sampled_from(["held", "smaller"]), st.integers(0, 2**63 - 1), st.integers(1, 99), WORDS, WORDS, WORDS
)
ENTRIES = st.builds(
    KnownPeak, WORDS, st.sampled_from(["cpu", "cuda"]), st.integers(0, 2**63 - 1), st.lists(ROWS, max_size=3).map(tuple)
)
TORCH = Made("2.13.0", "NVIDIA H100")


def entry(test: str, size: int, device: str = "cpu") -> KnownPeak:
    return KnownPeak(test, device, size * LEAST)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(ENTRIES, unique_by=key_of, max_size=4), st.sampled_from([0.02, 0.0, 0.1, 0.005]))
def test_what_is_written_is_read_back(entries: list[KnownPeak], tolerance: float) -> None:
    peaks = Peaks(tuple(sorted(entries, key=key_of)), TORCH, tolerance)
    assert parse_peaks(dump_peaks(peaks)) == peaks


def test_rows_without_a_form_or_a_place(tmp_path: Path) -> None:
    rows = (PeakRow("smaller", 5, 2), PeakRow("not explained", 7), PeakRow("held", 1, 1, "float32 [1]", "a.py:1 in f"))
    path = tmp_path / "gpu-peaks.toml"
    path.write_text(dump_peaks(Peaks((KnownPeak("a", "cpu", 13, rows),), Made("2.13.0"))), encoding="utf-8")
    assert '"5 | smaller | 2"' in path.read_text(encoding="utf-8")
    assert load_peaks(path).entries[0].parts == rows
    assert load_peaks(path).made == Made("2.13.0")


def test_an_update_takes_over_what_has_changed() -> None:
    old = Peaks((entry("a", 100), entry("b", 100), entry("c", 100), entry("d", 100), entry("e", 100)), TORCH)
    measured = [entry("a", 101), entry("b", 103), entry("f", 1), dataclasses.replace(entry("c", 0), bytes=LEAST - 1)]
    new, change = update_peaks(old, measured, {"a", "b", "c", "f"}, TORCH)
    assert [(one.test, one.bytes // LEAST) for one in new.entries] == [
        ("a", 100),
        ("b", 103),
        ("d", 100),
        ("e", 100),
        ("f", 1),
    ]
    assert change == (1, 1, 1, 3)
    assert update_peaks(new, measured, {"a", "b", "c", "f"}, TORCH)[0] == new


def test_an_update_with_another_torch_begins_anew() -> None:
    old = Peaks((entry("a", 100), entry("b", 100)), Made("1.0"), 0.1)
    new, _ = update_peaks(old, [entry("a", 101)], {"a"}, TORCH)
    assert new == Peaks((entry("a", 101),), TORCH, 0.1)


@pytest.mark.parametrize(
    ("device", "made", "said"),
    [
        ("cpu", Made("2.13.0"), ""),
        ("cuda", TORCH, ""),
        ("cuda", Made("2.13.0"), "made on NVIDIA H100, this is no GPU"),
        ("cpu", Made("2.14.0", "NVIDIA H100"), "made with torch 2.13.0, this is 2.14.0"),
    ],
)
def test_another_torch_or_gpu_is_not_compared(device: str, made: Made, said: str) -> None:
    assert Peaks((), TORCH).why_not_compared(device, made) == said


ENTRY = '[[peak]]\ntest = "test_a"\ndevice = "cpu"\nbytes = 5\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("version = 2\n", "version = 2 is not accepted, only 1; a newer pytest-gpuleak has written it"),
        ("[[peak]\n", "not TOML: "),
        (f"version = 1\n{ENTRY}{ENTRY}", "entry 2, line 6 (test_a): the same test as entry 1; "),
        (f"version = 1\n{ENTRY}parts = ['a']\n", "parts = a list is not accepted, only a list of texts "),
        ("version = 1\nleak = []\n", "unknown key 'leak', accepted are: version, torch, gpu, tolerance, peak"),
        ("version = 1\ngpu = 3\n", "gpu = 3 is not accepted, only a text"),
        ('version = 1\ntolerance = "2"\n', "tolerance = '2' is not accepted, only a percentage "),
    ],
)
def test_what_is_no_file_of_peaks(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "p.toml").write_text(text, encoding="utf-8")
    with pytest.raises(UnusableBaseline, match=re.escape(said)) as refused:
        load_peaks(tmp_path / "p.toml")
    assert str(refused.value).startswith(f"{tmp_path / 'p.toml'}: ")
