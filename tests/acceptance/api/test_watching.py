"""`watch()` and `assert_no_leak()`: the engine without pytest's hooks."""

from __future__ import annotations

import contextlib
import gc
import subprocess
import sys
import textwrap
import weakref
from typing import TYPE_CHECKING

import pytest

import pytest_gpuleak
from pytest_gpuleak import LeakError, assert_no_leak, watch
from pytest_gpuleak.adapters.frameworks import Frameworks
from pytest_gpuleak.adapters.guarded_framework import ArraysAlone
from tests.support.standin import Buffer, StandInArrays

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

pytestmark = pytest.mark.newest

KEPT: list[Buffer] = []
SLOT: dict[str, Buffer] = {}


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("pytest_gpuleak.api.own_frameworks", lambda: Frameworks([ArraysAlone(StandInArrays())]))
    yield
    KEPT.clear()
    SLOT.clear()


def test_a_block_that_leaves_something_behind() -> None:
    with watch() as leaks:
        KEPT.append(Buffer(100))
        assert not leaks
    (finding,) = leaks
    assert (finding.kind, finding.count, finding.bytes, leaks.bytes) == ("unconfirmed", 1, 100, 100)
    assert finding.holder is not None
    assert finding.holder.root == f"{__name__}.KEPT"
    assert f"{__name__}.KEPT[0]" in str(leaks)
    assert leaks[0:1] == [finding]
    assert repr(leaks) == "<Leaks: 1 findings>"


def test_a_clean_block() -> None:
    with watch() as leaks:
        Buffer()
    assert not leaks
    assert str(leaks) == "nothing was left behind"


def test_a_local_variable_of_the_caller_is_named() -> None:
    with watch() as leaks:
        mine = Buffer(100)
    assert mine is not None
    (finding,) = leaks
    assert finding.holder is not None
    assert finding.holder.kind == "frame"
    assert "mine" in finding.holder.text


def test_a_block_that_raises_is_not_judged() -> None:
    watched = []

    def broken() -> None:
        with watch() as leaks:
            watched.append(leaks)
            KEPT.append(Buffer())
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        broken()
    (leaks,) = watched
    assert (len(leaks), bool(leaks), list(leaks), leaks.bytes) == (0, False, [], 0)
    assert str(leaks) == "not judged: the block raised ValueError"
    assert repr(leaks) == "<Leaks: not judged: the block raised ValueError>"
    assert leaks.why_unchecked == "the block raised ValueError"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_a_block_that_is_ended_from_outside_is_not_judged(error: type[BaseException]) -> None:
    watched = []

    def ended() -> None:
        with watch() as leaks:
            watched.append(leaks)
            raise error

    with pytest.raises(error):
        ended()
    assert str(watched[0]) == f"not judged: the block raised {error.__name__}"


def test_the_exception_of_a_block_is_not_kept() -> None:
    class ReasonError(ValueError):
        pass

    gone = weakref.ref(Buffer())
    with contextlib.suppress(ReasonError), watch() as leaks:
        kept = Buffer()
        gone = weakref.ref(kept)
        raise ReasonError
    del kept
    assert gone() is None
    assert "ReasonError" in str(leaks)


def test_a_block_that_has_not_ended_is_not_said_to_be_clean() -> None:
    with watch() as leaks:
        assert str(leaks) == "not judged: the block has not ended"
        assert not leaks
    assert leaks.why_unchecked is None
    assert str(leaks) == "nothing was left behind"


def test_notebooks_show_html() -> None:
    with watch() as leaks:
        assert "not judged" in leaks._repr_html_()
        KEPT.append({"<b>": [Buffer(1000)]})  # type: ignore[arg-type]  # a nested one
    shown = leaks._repr_html_()
    assert shown.startswith("<pre>")
    assert shown.endswith("</pre>")
    assert "&lt;b&gt;" in shown
    assert "<b>" not in shown.replace("<pre>", "")
    assert "background" in shown
    assert "teardown" not in str(leaks)


def test_a_cycle_is_told_apart() -> None:
    gc.disable()
    try:
        with watch() as leaks:
            loop: list[object] = [Buffer(100)]
            loop.append(loop)
            del loop
    finally:
        gc.enable()
    assert [finding.kind for finding in leaks] == ["cycle"]
    assert leaks.bytes == 0


def test_the_collector_is_left_as_it_was() -> None:
    before = gc.collect, gc.get_objects, list(gc.callbacks), gc.isenabled()
    frozen = gc.get_freeze_count()
    with watch():
        KEPT.append(Buffer())
    assert (gc.collect, gc.get_objects, list(gc.callbacks), gc.isenabled()) == before
    assert gc.get_freeze_count() <= frozen


def test_growth_raises() -> None:
    with pytest.raises(LeakError) as caught:
        assert_no_leak(lambda: KEPT.append(Buffer(100)))
    (finding,) = caught.value.findings
    assert (finding.kind, finding.bytes_per_run, finding.failed) == ("growing", 100, True)
    assert "KEPT" in str(caught.value)
    assert finding.tensors[0].created is not None
    assert "KEPT.append" in finding.tensors[0].created.code
    assert len(KEPT) == 5, "one call, three more, and one that is traced for its lines"


def test_growth_is_seen_at_once_and_repeat_is_a_number_of_calls() -> None:
    with pytest.raises(LeakError):
        assert_no_leak(lambda: KEPT.append(Buffer(100)), repeat=1)
    assert len(KEPT) == 3


def test_what_is_returned_and_what_is_cached_is_no_leak() -> None:
    assert_no_leak(lambda: Buffer(2**21))
    assert_no_leak(lambda: SLOT.setdefault("x", Buffer(100)))


def test_a_large_cache_is_residue() -> None:
    with pytest.raises(LeakError, match="SLOT"):
        assert_no_leak(lambda: SLOT.setdefault("x", Buffer(2**21)))
    SLOT.clear()
    assert_no_leak(lambda: SLOT.setdefault("x", Buffer(2**21)), retained_mb=3)


def test_limits_of_growth() -> None:
    assert_no_leak(lambda: KEPT.append(Buffer(100)), tensors=1, mb=1)
    with pytest.raises(LeakError):
        assert_no_leak(lambda: KEPT.append(Buffer(100)), tensors=1, mb="50B")


def test_an_error_of_the_function_is_its_own() -> None:
    def broken() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        assert_no_leak(broken)


@pytest.mark.parametrize(
    "arguments",
    [{"repeat": 0}, {"repeat": True}, {"repeat": 1.5}, {"tensors": -1}, {"mb": -1}, {"retained_mb": "much"}],
)
def test_bad_arguments(arguments: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="accepted"):
        assert_no_leak(lambda: None, **arguments)  # type: ignore[arg-type]


def test_public_names() -> None:
    assert set(pytest_gpuleak.__all__) <= set(dir(pytest_gpuleak))
    with pytest.raises(AttributeError, match="nothing_like_it"):
        pytest_gpuleak.nothing_like_it  # type: ignore[attr-defined]  # noqa: B018 - asked for its error


@pytest.mark.torch
def test_in_a_script_with_torch() -> None:
    script = textwrap.dedent(
        """
        import sys
        from pytest_gpuleak import LeakError, assert_no_leak, watch
        assert "torch" not in sys.modules
        import torch

        HISTORY = []

        def train_step():
            HISTORY.append(torch.ones(256, 256))

        with watch() as leaks:
            train_step()
        print(leaks)
        try:
            assert_no_leak(train_step)
        except LeakError as error:
            print(error)
        """
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "__main__.HISTORY[0]" in done.stdout
    assert "every" in done.stdout or "each run" in done.stdout


async def _train() -> None:
    KEPT.append(Buffer(100))


def _batches() -> Iterator[Buffer]:
    KEPT.append(Buffer(100))
    yield KEPT[-1]


async def _streamed() -> AsyncIterator[Buffer]:
    yield Buffer(100)


@pytest.mark.parametrize(
    ("function", "instead"),
    [(_train, "asyncio.run"), (_batches, "list"), (_streamed, "asyncio.run")],
    ids=lambda one: "",
)
def test_a_function_whose_call_runs_nothing_is_refused(function: Callable[[], object], instead: str) -> None:
    """Each call would only make a coroutine or generator, and the leak inside pass for clean."""
    for check in (assert_no_leak, pytest_gpuleak.explain_peak):
        with pytest.raises(ValueError, match=rf"none of it: .*`lambda: {instead}"):
            check(function)
    assert not KEPT


def test_a_value_that_is_not_accepted_is_not_printed() -> None:
    class Batch:
        def __repr__(self) -> str:
            raise AssertionError("printed")

    with pytest.raises(ValueError, match="repeat=<Batch>: "):
        assert_no_leak(print, Batch())  # type: ignore[arg-type]
