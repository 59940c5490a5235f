"""Planted leaks, read cold at 80 columns: each is judged right, has its hint, and says a file and line to edit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak.reports.json.read import read_report
from tests.planted.table import KINDS
from tests.planted.told import untold
from tests.verdicts.modes import faults, run_mode
from tests.verdicts.suites import suite_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.planted.kind import Kind
    from tests.support.forked import ForkServer

pytestmark = pytest.mark.slow

FILES = [kind for kind in KINDS.values() if kind.code or kind.hint[0] or "# edit" in kind.source]
PROCESSES: dict[str, list[Kind]] = {}
# What imports torch's compiler adds 120,000 objects to each search after it, and comes last.
for kind in sorted(FILES, key=lambda kind: "torch.optim" in kind.source):
    PROCESSES.setdefault(kind.apart or ("codes" if kind.code else "files"), []).append(kind)


@pytest.mark.parametrize("kinds", PROCESSES.values(), ids=list(PROCESSES))
def test_each_is_told_with_its_hint_and_a_line_to_edit(
    kinds: Sequence[Kind], tmp_path: Path, torch_server: ForkServer | None
) -> None:
    suite = suite_of("planted", kinds)
    found = run_mode(suite, tmp_path, "report", server=torch_server)
    assert not found.trouble
    assert faults(suite, "report", found) == {}
    assert untold(kinds, read_report(tmp_path / "report.json")) == {}
