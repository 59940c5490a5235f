"""What lies in the frames of a failed test is told from what a test that follows may use."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.session.rerun.unseen.ended_frames import EndedFrames

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator


class Value:
    """Something that a frame refers to."""


KEPT: list[Any] = []


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    """Leave nothing in the globals."""
    yield
    KEPT.clear()


def fail(*, keep: bool) -> None:
    value = Value()
    if keep:
        KEPT.append(value)
    raise ValueError(id(value))


def identity_in_failure(*, keep: bool = False) -> int:
    with pytest.raises(ValueError, match=r"\d+") as failed:
        fail(keep=keep)
    KEPT.append(failed.tb.tb_next)
    return int(str(failed.value))


def alone_hold(identity: int) -> bool:
    found = [one for one in gc.get_objects() if type(one) is Value and id(one) == identity]
    assert len(found) == 1
    ended = EndedFrames((id(found),))
    answer = ended.alone_hold(found[0])
    found.clear()
    return answer


@pytest.mark.parametrize("shown", [False, True], ids=["as it ended", "its variables were shown"])
def test_a_failed_functions_variable_is_out_of_reach(shown: bool) -> None:
    identity = identity_in_failure()
    if shown:
        assert "value" in KEPT[0].tb_frame.f_locals
    assert alone_hold(identity)


def test_a_variable_that_something_else_holds_too_is_not() -> None:
    assert not alone_hold(identity_in_failure(keep=True))


def test_a_variable_of_a_running_function_is_not() -> None:
    value = Value()
    assert not EndedFrames(()).alone_hold(value)


def test_a_variable_of_a_generator_that_waits_is_not() -> None:
    def wait() -> Generator[int, None, None]:
        value = Value()
        with pytest.raises(ValueError, match=r"\d+") as failed:
            fail(keep=False)
        KEPT.append(failed.tb)
        yield id(value)

    waiting = wait()
    identity = next(waiting)
    assert KEPT[0].tb_frame.f_code.co_name == "wait"
    assert not alone_hold(identity)
    waiting.close()


def test_what_nothing_refers_to_is_not() -> None:
    assert not EndedFrames(()).alone_hold(Value())
