"""The lines on helper processes whose memory has drifted over the tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.model.finding_codec import decode
from pytest_gpuleak.model.helpers import HelperMemory, has_drifted
from pytest_gpuleak.model.isolation import isolated
from pytest_gpuleak.model.readings import HOST
from pytest_gpuleak.model.text import MIB, clean_text, count_of, format_signed
from pytest_gpuleak.reports.terminal.lines import ID_LIMIT, first_lines

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_TOLD: Final = 10
"""Lines that are shown. The JSON report has all helpers."""


def render_drift(counts: Mapping[str, Any]) -> list[str]:
    """Write a line for each helper of ``summary["helpers"]`` that has drifted, those that have grown most first."""
    helpers = [decode(HelperMemory, one) for one in counts.get("helpers") or ()]
    found = [one for one in helpers if has_drifted(one)]
    found.sort(key=lambda one: one.first - one.last)
    more = "gpu-leak: and {} more helper processes have grown; the JSON report has them"
    return first_lines(found, MAX_TOLD, lambda one: isolated(lambda: _line(one), _unshown), more)


def _line(helper: HelperMemory) -> str:
    of = "" if helper.worker == "main" else f" of {clean_text(helper.worker, ID_LIMIT)}"
    who = (
        f"{clean_text(helper.name, ID_LIMIT)} (pid {helper.pid}, fixture '{clean_text(helper.fixture, ID_LIMIT)}'{of})"
    )
    where = "" if helper.device == HOST else f" of {clean_text(helper.device, ID_LIMIT)}"
    sizes = f"{_mib(helper.first)} -> {_mib(helper.last)} MiB{where} over {count_of(helper.tests, 'test')}"
    advice = "" if helper.agent else "; --gpu-leak-children=agent names what it is"
    return f"gpu-leak: {who}: {sizes}{_most(helper)}{advice}"


def _most(helper: HelperMemory) -> str:
    """Name the test that has added most; where none has, the helper has grown between the tests, or within its first.

    Re-runs of suspects, which are no tests, may have added more.
    """
    if not helper.growth:
        return ", none of it during a test"
    most = helper.growth[0]
    name = clean_text(most.test.rpartition(".py::")[2] or most.test, ID_LIMIT)
    times = "once" if most.grew == 1 else f"{most.grew} times"
    share = "most of it" if 2 * most.bytes > helper.last - helper.first else "the most"
    return f", {share} in {name} ({format_signed(most.bytes // max(1, most.grew))}, {times})"


def _mib(size: int) -> str:
    return f"{round(size / MIB):,}"


def _unshown(why: str) -> str:
    return f"gpu-leak: a helper process has grown, which cannot be shown: {why}"
