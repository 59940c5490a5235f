"""Whether a collection of the whole heap comes before a re-run."""

from __future__ import annotations

from pytest_gpuleak.engine.settle.garbage_record import QUICK_RERUN_S, GarbageRecord


def test_a_quick_rerun_comes_first() -> None:
    assert not GarbageRecord().comes_first(QUICK_RERUN_S)


def test_the_collection_comes_first_while_it_frees_what_is_left() -> None:
    record = GarbageRecord()
    for _ in range(5):
        assert record.comes_first(1.0)
        record.note(freed=True)


def test_after_collections_in_vain_few_are_tried() -> None:
    record = GarbageRecord()
    for _ in range(2):
        assert record.comes_first(1.0)
        record.note(freed=False)
    tried = [record.comes_first(1.0) for _ in range(16 + 32 + 64 + 64)]
    assert [place for place, is_tried in enumerate(tried, start=1) if is_tried] == [16, 48, 112, 176]
    record.note(freed=True)
    assert record.comes_first(1.0)
    for _ in range(2):
        record.note(freed=False)
    assert [record.comes_first(1.0) for _ in range(16)] == [False] * 15 + [True]


def test_the_next_collections_wait_for_the_setup_where_one_has_freed_all() -> None:
    record = GarbageRecord()
    assert not record.waits_for_setup(1.0)
    record.note_freed_by_setup()
    assert [record.waits_for_setup(1.0) for _ in range(5)] == [True] * 4 + [False]
    record.note_freed_by_setup()
    assert not record.waits_for_setup(QUICK_RERUN_S)
