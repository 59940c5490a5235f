"""Put back, once the verdict is reached, what a test has added to what outlives it: earlier would hide growth."""

from __future__ import annotations

import functools
import gc
import signal
import sys
import types
import weakref
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuleak.heap.safe_access import module_dict, mro
from pytest_gpuleak.session.frameworks import shared_frameworks
from pytest_gpuleak.session.pytest_internals import fixtures_of
from pytest_gpuleak.session.rerun.unseen.process import hooks, loggers_of
from pytest_gpuleak.session.rerun.unseen.restoring import (
    Restore,
    all_of,
    if_loaded,
    keep_value,
    nothing,
    replace,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import pytest

MOCK_LISTS = ("_mock_call_args_list", "_mock_mock_calls", "method_calls", "_mock_await_args_list")
MOCK_COUNTS = ("_mock_called", "_mock_call_count", "_mock_await_count")
MOCK_LAST = {"_mock_call_args": "_mock_call_args_list", "_mock_await_args": "_mock_await_args_list"}
"""Names in a mock's dictionary that hold its calls (Lib/unittest/mock.py)."""


def _members(values: Iterable[Any]) -> Callable[[object], bool]:
    """Return a function that tells members of `values`, noted weakly, or by id if they have no weak references."""
    known: dict[int, weakref.ref[Any] | None] = {}
    for value in values:
        try:
            known[id(value)] = weakref.ref(value)
        except TypeError:
            known[id(value)] = None

    def was_there(value: object) -> bool:
        reference = known.get(id(value))
        # Another object may have reused the id.
        return id(value) in known if reference is None else reference() is value

    return was_there


def _keep_members(values: list[Any]) -> Restore:
    """Note a list's members; new members are removed later."""
    was_there = _members(values)

    def restore() -> None:
        if not all(map(was_there, values)):
            values[:] = [value for value in values if was_there(value)]

    return restore


@if_loaded("logging")
def _keep_log_handlers(logging: Any) -> Restore:
    loggers = loggers_of(logging)
    return all_of(_keep_members(values) for logger in loggers for values in (logger.handlers, logger.filters))


def _keep_hooks() -> Restore:
    lists = [sys.meta_path, sys.path_hooks, getattr(gc, "callbacks", [])]  # PyPy has no callbacks
    return all_of(_keep_members(values) for values in lists)


def _keep_wrapped_hooks() -> Restore:
    """Note the hooks that others keep too. One that was let go of meanwhile has been put back already (`keep_replaced_hooks`)."""
    return all_of(_keep_weakly(*hook) for hook in hooks())


def _keep_weakly(read: Callable[[], Any], write: Callable[[Any], object]) -> Restore:
    noted: Callable[[], Any]
    try:
        noted = weakref.ref(read())
    except TypeError:  # `signal.SIG_DFL`, or None where C has set it
        return keep_value(read, write) if type(read()) is signal.Handlers else nothing

    def restore() -> None:
        saved = noted()
        if saved is not None and read() is not saved:
            write(saved)

    return restore


@if_loaded("unittest.mock")
def _keep_mocks(mock: Any) -> Restore:
    """Note the calls of each mock there is before it is called again; one that is reset keeps what follows."""
    was_there = _members(_below(mock.NonCallableMock))  # each mock has a class of its own
    kept: dict[int, Restore] = {}

    def note_calls(called: Any) -> None:
        while called is not None:  # a call is noted by those above the mock too
            names = object.__getattribute__(called, "__dict__")
            if id(called) not in kept and was_there(type(called)):
                kept[id(called)] = _keep_calls(weakref.ref(called), names)
            called = names.get("_mock_new_parent")

    methods = [
        _precede(mock.CallableMixin, "_increment_mock_call", note_calls),
        _precede(mock.NonCallableMock, "reset_mock", lambda reset: kept.setdefault(id(reset), nothing)),
    ]

    def restore() -> None:
        all_of([*kept.values(), *methods])()

    return restore


def _precede(owner: type, name: str, note: Callable[[Any], object]) -> Restore:
    """Have a method of a class call `note` with the object first."""
    method = vars(owner)[name]

    @functools.wraps(method)
    def noting(one: Any, /, *arguments: Any, **named: Any) -> Any:
        note(one)
        return method(one, *arguments, **named)

    return replace(owner, name, noting)


def _below(kind: type) -> list[type]:
    found = [kind]
    for one in found:
        found += type.__subclasses__(one)
    return found


def _keep_calls(mock: weakref.ref[Any], names: dict[str, Any]) -> Restore:
    lengths = {name: (id(names[name]), len(names[name])) for name in MOCK_LISTS if name in names}
    counts = {name: names[name] for name in MOCK_COUNTS if type(names.get(name)) in (bool, int)}
    return functools.partial(_cut_calls, mock, lengths, counts)


def _cut_calls(mock: weakref.ref[Any], lengths: dict[str, tuple[int, int]], counts: dict[str, Any]) -> None:
    alive = mock()
    now: dict[str, Any] = {} if alive is None else object.__getattribute__(alive, "__dict__")
    if any(id(now.get(name)) != identity for name, (identity, _) in lengths.items()):
        return  # it is gone, or was reset
    for name, (_, length) in lengths.items():
        del now[name][length:]
    now.update(counts)
    for name, source in MOCK_LAST.items():
        if name in now and source in now:
            now[name] = now[source][-1] if now[source] else None


KEEPERS: tuple[Callable[[], Restore], ...] = (
    _keep_log_handlers,
    _keep_hooks,
    _keep_wrapped_hooks,
    _keep_mocks,
)
"""Note the handlers and filters of loggers, the calls of mocks, and hooks into the interpreter and its signals."""


MOST_GLOBALS: Final = 200
"""Values of a namespace beyond which it is passed over: a module to which each test adds takes longer with each."""


def keep_shared_values(item: pytest.Item) -> Restore:
    """Note the content of models that the test shares with others, before it is run again."""
    return all_of(shared_frameworks(item.config).keep_values(lambda: shared_values(item)))


def shared_values(item: pytest.Item) -> dict[str, object]:
    """Return what the test shares with others, by a name for each that stays the same."""
    found: dict[str, object] = {}
    for fixture in fixtures_of(item):
        result = getattr(fixture, "cached_result", None)
        # The fixture `request` has no scope before pytest 8.1, and is the test's own.
        if result is not None and result[-1] is None and getattr(fixture, "scope", "function") != "function":
            found[f"fixture {fixture.argname} {id(fixture)}"] = result[0]
    test_class = getattr(item, "cls", None)
    namespaces: list[Mapping[str, object]] = []
    if test_class is not None:
        namespaces += map(vars, mro(test_class))
    namespaces.append(module_dict(getattr(item, "module", None)) or {})
    for index, namespace in enumerate(namespaces):
        # Most entries are functions and classes.
        values = {f"{index} {name}": value for name, value in list(namespace.items()) if type(value) not in _CODE}
        if len(values) <= MOST_GLOBALS:
            found |= values
    return found


_CODE = frozenset((types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type, property, str, int))
