"""After a failed test its frames are cleared, and the device's cache is released."""

from __future__ import annotations

import re
import sys
import types
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.adapters.registry import own_frameworks
from pytest_gpuleak.model.readings import HOST
from pytest_gpuleak.session.features.cleanup import clear_frames, release_device_cache
from tests.conftest import forget_torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import Runner


class Value:
    """Something that a frame holds."""


def caught(function: Callable[[], object]) -> BaseException:
    try:
        function()
    except Exception as error:  # noqa: BLE001 - whatever it raises is what is asked for
        return error
    raise AssertionError("it raised nothing")


def test_the_frames_of_an_error_let_go_of_their_locals() -> None:
    witnesses: list[weakref.ref[Value]] = []

    def inner() -> None:
        value = Value()
        witnesses.append(weakref.ref(value))
        raise ValueError

    def outer() -> None:
        value = Value()
        witnesses.append(weakref.ref(value))
        inner()

    error = caught(outer)
    assert all(witness() is not None for witness in witnesses)

    clear_frames([(error, None)])  # of `caught` too, which has returned

    assert [witness() for witness in witnesses] == [None, None]
    assert error.__traceback__ is not None


def test_what_pytest_has_looked_at_is_let_go_of_too_but_not_what_the_user_keeps() -> None:
    witnesses: list[weakref.ref[Value]] = []
    kept: list[dict[str, object]] = []

    def fail(*, keep: bool) -> None:
        value = Value()
        witnesses.append(weakref.ref(value))
        if keep:
            kept.append(locals())
        raise ValueError

    errors = [caught(lambda: fail(keep=False)), caught(lambda: fail(keep=True))]
    for error in errors:
        traceback = error.__traceback__
        while traceback is not None:
            assert traceback.tb_frame.f_locals is not None  # as a traceback with locals does
            traceback = traceback.tb_next

    clear_frames([(error, None) for error in errors])

    assert witnesses[0]() is None
    assert kept[0]["value"] is witnesses[1]()


def test_the_frames_behind_an_error_are_cleared_too() -> None:
    witnesses: list[weakref.ref[Value]] = []

    def fail(kind: type[Exception]) -> None:
        value = Value()
        witnesses.append(weakref.ref(value))
        raise kind

    def caused() -> None:
        try:
            fail(ValueError)
        except ValueError as error:
            raise KeyError from error

    def within() -> None:
        try:
            fail(TypeError)
        except TypeError:
            fail(OSError)

    errors: list[tuple[BaseException, None]] = [(caught(caused), None), (caught(within), None)]
    if sys.version_info >= (3, 11):
        members = [error for error in (caught(lambda: fail(KeyError)),) if isinstance(error, Exception)]
        errors.append((ExceptionGroup("one", members), None))  # noqa: F821 - not in Python 3.10
        del members

    clear_frames(errors)

    assert [witness() for witness in witnesses] == [None] * len(witnesses)


def test_what_still_runs_and_what_is_suspended_is_left_alone() -> None:
    log: list[str] = []
    errors: list[BaseException] = []
    own = Value()

    def fail() -> None:
        raise ValueError

    def fixture() -> Iterator[Value]:
        value = Value()
        try:
            try:
                fail()
            except ValueError as error:
                errors.append(error)
            yield value
        finally:
            log.append("closed")

    generator = fixture()
    first = next(generator)
    try:
        fail()
    except ValueError as error:
        errors.append(error)  # its traceback begins in this frame, which runs

    clear_frames([(error, None) for error in errors])

    assert log == []
    assert isinstance(own, Value)
    assert next(generator, first) is first
    assert log == ["closed"]


def test_a_generator_and_a_coroutine_that_have_failed_are_cleared() -> None:
    witnesses: list[weakref.ref[Value]] = []

    def generate() -> Iterator[None]:
        value = Value()
        witnesses.append(weakref.ref(value))
        yield
        raise ValueError

    async def test_coroutine() -> None:
        value = Value()
        witnesses.append(weakref.ref(value))
        raise ValueError

    errors = [caught(lambda: list(generate())), caught(lambda: test_coroutine().send(None))]
    clear_frames([(error, None) for error in errors])

    assert [witness() for witness in witnesses] == [None, None]


def test_errors_that_are_shown_again_keep_their_frames() -> None:
    def fail() -> None:
        value = Value()
        witnesses.append(weakref.ref(value))
        raise ValueError

    witnesses: list[weakref.ref[Value]] = []
    kept, other = caught(fail), caught(fail)

    clear_frames([(kept, None), (other, None)], [kept])

    assert [witness() is not None for witness in witnesses] == [True, False]


@pytest.mark.parametrize(
    ("counters", "expected"),
    [
        ({("cuda:0", "allocated"): 5, ("cuda:0", "reserved"): 9, ("cuda:1", "reserved"): 1}, ["cuda"]),
        ({("cuda:0", "allocated"): 9, ("cuda:0", "reserved"): 9}, []),
        ({("cuda:0", "allocated"): 9}, []),
        ({("xpu:0", "reserved"): 9}, []),
        ({(HOST, "reserved"): 9}, []),
        ({}, []),
    ],
)
def test_only_devices_with_something_cached_are_asked(
    counters: dict[tuple[str, str], int], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_torch(monkeypatch)
    calls: list[str] = []
    module: Any = types.ModuleType("torch.cuda")
    module.empty_cache = lambda: calls.append("cuda")
    monkeypatch.setitem(sys.modules, "torch.cuda", module)
    monkeypatch.setitem(sys.modules, "torch.xpu", types.ModuleType("torch.xpu"))

    release_device_cache(counters, own_frameworks())
    assert calls == expected


FAILURES = """
    import pytest, sys, weakref

    WITNESS = {}

    def kept(name):
        buffer = Buffer(2**20)
        WITNESS[name] = weakref.ref(buffer)
        return buffer

    def gone():
        found = {name for name, witness in WITNESS.items() if witness() is not None}
        WITNESS.clear()
        return not found

    @pytest.fixture
    def borrowed():
        yield kept("fixture")

    @pytest.fixture
    def broken():
        held = kept("setup")
        raise ValueError("in setup")

    @pytest.fixture
    def ends_badly():
        yield
        held = kept("teardown")
        raise ValueError("in teardown")

    @pytest.fixture(scope="module")
    def broken_for_all():
        shown = "the same in both"
        raise ValueError("in a wider setup")

    def test_call(borrowed):
        held = kept("call")
        loop = [kept("cycle")]
        loop.append(loop)
        try:
            raise KeyError("first")
        except KeyError as error:
            raise RuntimeError("behind") from error

    def test_after_call():
        assert gone() == EXPECTED

    def test_setup(broken):
        pass

    def test_after_setup():
        assert gone() == EXPECTED

    def test_teardown(ends_badly):
        pass

    def test_after_teardown():
        assert gone() == EXPECTED

    def test_wider_one(broken_for_all):
        pass

    def test_wider_two(broken_for_all):
        pass

    @pytest.mark.gpu_leak(confirm=0)
    def test_with_another_policy():
        held = kept("policy")
        assert 0

    def test_after_another_policy():
        assert gone() == EXPECTED

    def test_passes():
        value = kept("passed")
        sys.held_for_a_debugger = sys._getframe()

    def test_a_passed_tests_frames_are_left_alone():
        frame = sys.held_for_a_debugger
        del sys.held_for_a_debugger
        assert WITNESS["passed"]() is frame.f_locals["value"]
"""


def shown(text: str) -> str:
    """What a run printed, without what differs from run to run."""
    text = re.sub(r"0x[0-9a-f]+|\.\.\.[0-9a-f]+>", "0x", text)
    # The line that closes a run is as wide as its time leaves it.
    text = re.sub(r"=* (.*) in [\d.]+s( \([\d:]+\))? =*|[\d.]+ (us|ms) a test", r"\1", text)
    return re.sub(r"(rootdir|gpu-leak|plugins): .*", "", text)


@pytest.mark.parametrize("style", ["--tb=long", "--tb=native"])
def test_a_failed_tests_memory_is_gone_before_the_next_and_nothing_else_differs(run_wired: Runner, style: str) -> None:
    arguments = [style, "-l", "--gpu-leak-host=off"]
    cleaned = run_wired(FAILURES.replace("EXPECTED", "True "), "--gpu-leak-clean", *arguments)
    plain = run_wired(FAILURES.replace("EXPECTED", "False"), *arguments)

    # Without the option pytest's tracebacks hold it: the tests that look say so.
    outcomes = {name: test["outcome"] for name, test in cleaned.tests.items()}
    assert {name for name, outcome in outcomes.items() if outcome == "passed"} == {
        "test_after_call",
        "test_after_setup",
        "test_after_teardown",
        "test_after_another_policy",
        "test_passes",
        "test_a_passed_tests_frames_are_left_alone",
    }
    assert outcomes == {name: test["outcome"] for name, test in plain.tests.items()}
    texts = [shown(one.result.stdout.str()) for one in (cleaned, plain)]
    lines = [text.splitlines() for text in texts]
    if style == "--tb=native":  # which shows the frames of every plugin's hooks too, ours among them
        lines = [[line for line in part if not line.startswith("  ") or "test_it.py" in line] for part in lines]
    assert lines[0] == lines[1]
    if style == "--tb=long":
        assert texts[0].count("shown      = 'the same in both'") == 2


def test_nothing_is_cleared_while_a_debugger_may_ask(run_wired: Runner) -> None:
    result = run_wired(
        """
        import weakref

        WITNESS = []

        def test_fails():
            held = Buffer(2**20)
            WITNESS.append(weakref.ref(held))
            raise ValueError

        def test_after():
            assert WITNESS[0]() is not None
        """,
        "--gpu-leak-clean",
        "--pdb",
        "--pdbcls=tests.acceptance.memory.quiet_debugger:QuietDebugger",
        "--gpu-leak-host=off",
    )

    assert {name: test["outcome"] for name, test in result.tests.items()} == {
        "test_fails": "failed",
        "test_after": "passed",
    }


def test_the_attempt_before_the_next_one_is_cleaned_up(run_wired: Runner) -> None:
    pytest.importorskip("pytest_rerunfailures")
    result = run_wired(
        """
        import pytest, weakref

        WITNESS = []

        @pytest.mark.flaky(reruns=2)
        def test_flaky():
            found = [witness() for witness in WITNESS]
            assert found == [None] * len(WITNESS)
            held = Buffer(2**20)
            WITNESS.append(weakref.ref(held))
            assert len(WITNESS) > 2
        """,
        "--gpu-leak-clean",
        "--gpu-leak-host=off",
        "-p",
        "rerunfailures",
    )

    result.result.assert_outcomes(passed=1)
    assert result.tests["test_flaky"]["verdict"] == "clean"
