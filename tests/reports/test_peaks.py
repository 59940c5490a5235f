"""Peaks in the reports: a figure that can be read without a script, and the same as text."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

from pytest_gpuleak.model.peak_changes import PeakRow, compare_rows
from pytest_gpuleak.model.peak_parts import Peak, PeakMoment, PeakPart, PeakStep
from pytest_gpuleak.model.source_files import Origin
from pytest_gpuleak.reports import formats
from pytest_gpuleak.reports.html.peaks import draw_peaks
from pytest_gpuleak.reports.terminal.peak import heaviest, render_heaviest, render_rows

if TYPE_CHECKING:
    from tests.reports.conftest import Make

MIB = 2**20
STEPS = (
    PeakStep(1, "setup", None, None, {"parameter": MIB}),
    PeakStep(5, "forward", "model.py", 10, {"parameter": MIB, "activation": 3 * MIB}),
    PeakStep(9, "backward", "test_a.py", 4, {"parameter": MIB, "activation": MIB, "<b>": MIB}),
)
PEAK = Peak(
    "cpu",
    4 * MIB,
    PeakMoment("model.py", 10, "Net", "forward", "forward", "tanh"),
    (
        PeakPart("activation", "Net", 3 * MIB, 3, "float32", (512, 512), Origin("model.py", 10, "forward", "tanh(x)")),
        PeakPart("parameter", "Net", MIB, 1, "float32", (512, 512)),
    ),
    steps=STEPS,
)


def test_the_areas_stack_up_to_the_peak_which_is_marked(make: Make) -> None:
    (figure,) = draw_peaks(make.report(make.test("test_a", peak=PEAK), make.test("test_b")))
    assert [area.name for area in figure.areas] == ["parameter", "activation", "<b>"]
    parameter, activation, _ = (area.points for area in figure.areas)
    assert parameter[:3] == activation[:-4:-1]  # the lower edge of one is the upper edge of that below it
    assert figure.mark == activation[1]
    assert activation[1][1] == figure.top
    assert [cells[0] for cells, is_peak in figure.table if is_peak] == ["5"]
    assert figure.table[1][0] == ("5", "forward", "model.py:10", "4.0 MiB", "1.0 MiB", "3.0 MiB", "")
    assert figure.columns == ("Step", "Phase", "Line", "In all", "parameter", "activation", "<b>")


def test_the_page_has_it_without_a_script_and_for_the_keyboard(make: Make) -> None:
    page = formats.render(make.report(make.test("test_<i>a", peak=PEAK)), "html")
    (section,) = re.findall(r'<section id="peaks".*?</section>', page, re.DOTALL)
    assert '<a href="#peaks">Peaks</a>' in page
    assert section.count("<polygon") == 3
    assert 'role="img" aria-label="peak of 4.0 MiB on cpu' in section
    assert "<details><summary>The steps as a table</summary>" in section
    assert '<div class="scroll" tabindex="0"' in section
    assert "5 (peak)" in section
    assert "&lt;b&gt;" in section
    assert "test_&lt;i&gt;a" in section
    assert "<b>" not in section
    assert "3 x float32 [512, 512]" in section
    assert "style=" not in section  # the page's policy forbids it


def test_a_page_without_peaks_has_no_section(make: Make) -> None:
    page = formats.render(make.report(make.test("test_a")), "html")
    assert 'id="peaks"' not in page
    assert "PEAKS" not in page


def test_a_peak_without_steps_has_its_rows(make: Make) -> None:
    page = formats.render(make.report(make.test("test_a", peak=dataclasses.replace(PEAK, steps=()))), "html")
    assert "<polygon" not in page
    assert "3 x float32 [512, 512]" in page


def test_markdown_lists_the_heaviest_first(make: Make) -> None:
    light = dataclasses.replace(PEAK, bytes=2 * MIB, parts=PEAK.parts[1:])
    text = formats.render(
        make.report(make.test("test_light", peak=light), make.test("test_heavy", peak=PEAK)), "markdown"
    )
    assert text.index("test_heavy") < text.index("test_light")
    assert "<code>test_heavy</code>: peak of 4.0 MiB on cpu, above what was there before</summary>" in text
    assert "3.0 MiB  3 x float32 [512, 512]  activation  model.py:10  Net" in text


def test_where_a_device_was_used_the_host_is_not_ranked_with_it() -> None:
    on_device = dataclasses.replace(PEAK, device="cuda:0", bytes=MIB)
    peaks = [("test_cpu", PEAK), ("test_cuda", on_device), ("test_none", dataclasses.replace(PEAK, bytes=0))]
    assert heaviest(peaks, 5) == [("test_cuda", on_device)]
    assert heaviest(peaks[:1], 5) == peaks[:1]
    assert render_heaviest(peaks, 5)[0] == "gpu-leak: the peaks of the 1 heaviest test (on devices)"
    assert render_heaviest([], 5) == [
        "gpu-leak: no peak was explained: no test has used a device, or made a tensor on the CPU"
    ]


def test_rows_that_grew_and_rows_that_shrank_add_up_to_the_change() -> None:
    old = [
        PeakRow("temporary", 4 * MIB, 1, "float32 [8]", "m.py:1 in f"),
        PeakRow("held", 300, 1, "int8 [300]", "m.py:2 in f"),
    ]
    new = [
        PeakRow("activation", 8 * MIB, 2, "float32 [8]", "m.py:1 in f"),
        PeakRow("held", 200, 1, "int8 [200]", "m.py:2 in f"),
    ]
    assert render_rows(compare_rows(old, new)) == [
        "    +8.0 MiB  activation  m.py:1 in f  new: 2 x float32 [8]",
        "    -4.0 MiB  temporary  m.py:1 in f  gone: 1 x float32 [8]",
        "  -100 bytes  1 more",
    ]
