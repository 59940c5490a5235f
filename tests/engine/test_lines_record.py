"""Whether a re-run is traced for the lines that create arrays."""

from __future__ import annotations

from pytest_gpuleak.engine.lines_record import QUICK_RERUN_S, LinesRecord


def test_lines_come_first_until_two_notes_made_no_use_of_them() -> None:
    record = LinesRecord()
    assert record.come_first(1.0)
    record.note(of_use=False)
    assert record.come_first(1.0)
    record.note(of_use=False)
    assert not record.come_first(1.0)
    record.note(of_use=True)
    assert record.come_first(1.0)


def test_a_quick_rerun_is_always_traced() -> None:
    record = LinesRecord()
    for _ in range(5):
        record.note(of_use=False)
    assert record.come_first(QUICK_RERUN_S)
