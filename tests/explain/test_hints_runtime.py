"""Hints on objects of the standard library that record what they were given."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak.explain.hints import runtime
from tests.support.leaks import CLOSURE, hint_for, leak, trail

if TYPE_CHECKING:
    from pytest_gpuleak.model.findings import Finding

pytestmark = pytest.mark.newest

IN_FRAME = (".f_locals['x']", "frame of f")
TRACEBACK = [(".__traceback__", "ValueError"), (".tb_next", "traceback"), (".tb_frame", "traceback"), IN_FRAME]
AT_EXIT = "C++ (atexit, or another list of callbacks) -> function "


@pytest.mark.parametrize(
    ("finding", "start", "remedy"),
    [
        (leak("app.ERRORS", ("[0]", "list"), *TRACEBACK), "The exception kept in `app.ERRORS`", "`str(error)`"),
        (leak("app.LAST", *TRACEBACK), "The exception kept in `app.LAST`", "`error.with_traceback(None)`"),
        (
            leak("app.LAST", (".__context__", "KeyError"), *TRACEBACK),
            "The exception kept in `app.LAST` keeps the one before it",
            "keep `str(error)` instead",
        ),
        (
            leak("app.LAST", ("._excinfo", "_pytest._code.code.ExceptionInfo"), ("[2]", "tuple"), *TRACEBACK[1:]),
            "What `pytest.raises` gave is kept in `app.LAST`",
            "`str(excinfo.value)`",
        ),
        (
            leak("app.ERRORS", ("[0]", "list"), (".args[0]", "ValueError")),
            "The exception kept in `app.ERRORS` was raised with an array",
            "`str(error)`",
        ),
        (
            leak(
                "app.CLIENT",
                (".send", "unittest.mock.MagicMock"),
                (".call_args_list", "unittest.mock.MagicMock"),
                ("[0]", "unittest.mock._CallList"),
                (".args", "unittest.mock._Call"),
                ("[0]", "tuple"),
            ),
            "The mock `app.CLIENT.send` keeps the arguments of each call",
            "`reset_mock()`",
        ),
        (
            leak(
                "app.H", (".buffer", "app.Handler"), ("[0]", "list"), (".args", "logging.LogRecord"), ("[0]", "tuple")
            ),
            "A log record kept in `app.H.buffer` keeps what was logged",
            "`loss.item()`",
        ),
        (
            leak("app.RECORD", (".exc_info", "logging.LogRecord"), ("[1]", "tuple"), *TRACEBACK),
            "A log record kept in `app.RECORD` keeps an exception",
            "`str(error)`",
        ),
        (leak("app.CTX.get()", found="retained"), "The context variable `app.CTX`", "`reset(token)`"),
        (
            leak("a thread's context", ("[<ContextVar 'ctx'>]", "contextvars.Context"), kind="thread"),
            "The context variable 'ctx'",
            "`reset(token)`",
        ),
        (
            leak(
                "weakref.finalize callback app.save of app.Pool", (": args[0]", "weakref.finalize._Info"), kind="class"
            ),
            "The weakref.finalize callback app.save of app.Pool keeps",
            "`detach()`",
        ),
        (
            leak(
                "C++",
                CLOSURE,
                kind="native",
                text=f"{AT_EXIT}app.make.<locals>.save.__closure__[0].cell_contents",
            ),
            "If `app.make.<locals>.save` was given to `atexit.register()`",
            "`atexit.unregister()`",
        ),
        (
            leak("C++", ("[0]", "tuple"), kind="native", text="C++ (atexit, or another list of callbacks) -> tuple[0]"),
            "If it is an argument of a function that was given to `atexit.register()`",
            "`atexit.unregister()`",
        ),
        (
            leak("unittest.mock.patch of 'send', not stopped", (": new", "unittest.mock._patch"), kind="class"),
            "The patch of 'send' was started and never stopped",
            "`stop()`",
        ),
        (leak("signal.getsignal(signal.SIGUSR1)", CLOSURE), "The handler set for SIGUSR1", "`signal.signal()`"),
        (leak("sys.getprofile()", CLOSURE), "A function that is still set", "`sys.setprofile(None)`"),
    ],
)
def test_what_records_is_named_with_the_way_to_empty_it(finding: Finding, start: str, remedy: str) -> None:
    hint = hint_for(finding)
    assert hint is not None
    assert hint.startswith(start)
    assert remedy in hint


def test_a_chained_exception_is_not_freed_by_dropping_its_own_traceback() -> None:
    hint = hint_for(leak("app.LAST", (".__cause__", "KeyError"), *TRACEBACK))
    assert "with_traceback" not in str(hint)


@pytest.mark.parametrize(
    "finding",
    [
        leak("exception ValueError", *TRACEBACK, kind="traceback"),
        leak("sys.last_exc", *TRACEBACK, kind="traceback"),
        leak("thread 'w' in f: local 'e'", *TRACEBACK, kind="frame"),
        leak("app.NODE", (".__context__", "app.Node"), (".tensor", "app.Context")),
    ],
)
def test_a_traceback_that_nobody_stored_gets_no_advice_on_where_it_is_stored(finding: Finding) -> None:
    assert runtime.stored_traceback(trail(finding)) is None


@pytest.mark.parametrize(
    "steps",
    [
        [(".args", "functools.partial"), ("[0]", "tuple")],  # two edges: no exception's
        [(".args", "app.Options")],
    ],
)
def test_the_arguments_of_other_things_are_no_exceptions(steps: list[tuple[str, str]]) -> None:
    assert runtime.exception_argument(trail(leak("app.X", *steps))) is None


@pytest.mark.parametrize(
    "steps",
    [
        [(".return_value", "unittest.mock.Mock")],  # configured, not recorded: a reset does not free it
        [(".mock_calls", "app.Recorder"), ("[0]", "list")],
    ],
)
def test_a_mock_is_reset_for_its_recorded_calls_alone(steps: list[tuple[str, str]]) -> None:
    assert runtime.mock_calls(trail(leak("app.MOCK", *steps))) is None


def test_an_attribute_that_a_record_was_given_is_not_what_was_logged() -> None:
    assert runtime.log_record(trail(leak("app.R", (".batch", "logging.LogRecord")))) is None


def test_a_dict_with_a_key_like_a_context_variable_is_no_context() -> None:
    finding = leak("app.VALUES", ("[<ContextVar 'ctx'>]", "dict"))
    assert runtime.context_variable(trail(finding)) is None


def test_native_code_that_keeps_an_object_is_not_atexit() -> None:
    finding = leak("C++", kind="native", text="C++ -> torch.Tensor")
    assert hint_for(finding) is None
