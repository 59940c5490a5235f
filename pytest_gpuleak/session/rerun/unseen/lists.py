"""Cut lists that a test appends to back to their length, once the verdict is reached: earlier would hide growth."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.heap.collector import instances_of_classes, whole_heap
from pytest_gpuleak.session.rerun.unseen.restoring import Restore, all_of, if_loaded, keep_each

if TYPE_CHECKING:
    from collections.abc import Callable

MOCK_LISTS = ("_mock_call_args_list", "_mock_mock_calls", "method_calls", "_mock_await_args_list")
MOCK_COUNTS = ("_mock_called", "_mock_call_count", "_mock_await_count")
MOCK_LAST = {"_mock_call_args": "_mock_call_args_list", "_mock_await_args": "_mock_await_args_list"}
"""Names in a mock's dictionary that hold its calls (Lib/unittest/mock.py)."""


def keep_lists() -> Restore:
    """Note the handlers and filters of loggers, the calls of mocks, and hooks into imports and collections."""
    return keep_each(KEEPERS)


def _keep_members(values: list[Any]) -> Restore:
    """Note a list's members weakly, or by id if they have no weak references; new members are removed later."""
    known: dict[int, weakref.ref[Any] | None] = {}
    for value in values:
        try:
            known[id(value)] = weakref.ref(value)
        except TypeError:
            known[id(value)] = None

    def was_there(value: object) -> bool:
        if id(value) not in known:
            return False
        reference = known[id(value)]
        return reference is None or reference() is value  # another object may have reused the id

    def restore() -> None:
        if not all(map(was_there, values)):
            values[:] = [value for value in values if was_there(value)]

    return restore


@if_loaded("logging")
def _keep_log_handlers(logging: Any) -> Restore:
    root = logging.root
    loggers = [root, *(one for one in root.manager.loggerDict.values() if logging.Logger in type(one).__mro__)]
    return all_of(_keep_members(values) for logger in loggers for values in (logger.handlers, logger.filters))


def _keep_hooks() -> Restore:
    lists = [sys.meta_path, sys.path_hooks, getattr(gc, "callbacks", [])]  # PyPy has no callbacks
    return all_of(_keep_members(values) for values in lists)


@if_loaded("unittest.mock")
def _keep_mocks(mock: Any) -> Restore:
    own = {id(value) for value in vars(mock).values()}
    classes = [kind for kind in _below(mock.NonCallableMock) if id(kind) not in own]
    unknown = {id(kind): kind for kind in classes if _mock_of(kind) is _UNKNOWN}
    if unknown:
        _find_mocks(unknown)
    mocks = [one for kind in classes if (one := _mock_of(kind)) is not _UNKNOWN and one is not None]
    restores = [_keep_calls(one) for one in mocks]
    mocks.clear()
    return all_of(restores)


_UNKNOWN: Any = object()
_MOCKS: dict[int, tuple[weakref.ref[type], weakref.ref[Any] | None]] = {}
"""By the id of a mock's class, references to it and to the mock. Each mock has a class of its own (Lib/unittest/mock.py)."""


def _mock_of(kind: type) -> Any:
    """Return the mock of this class; None if it is gone, or the class has none; `_UNKNOWN` if it was never searched for."""
    known, one = _MOCKS.get(id(kind), (None, None))
    if known is None or known() is not kind:
        return _UNKNOWN
    return None if one is None else one()


def _find_mocks(classes: dict[int, type]) -> None:
    """Search for the mocks of these classes, by id: among young objects first, since the heap takes tens of milliseconds."""
    found = instances_of_classes(classes.values())
    if len(found) < len(classes):
        found.clear()
        with whole_heap():
            found = instances_of_classes(classes.values())
    for identity in [identity for identity, (known, _) in _MOCKS.items() if known() is None]:
        del _MOCKS[identity]
    _MOCKS.update({identity: (weakref.ref(kind), None) for identity, kind in classes.items()})
    _MOCKS.update({id(type(one)): (weakref.ref(type(one)), weakref.ref(one)) for one in found})
    found.clear()


def _below(kind: type) -> list[type]:
    found = [kind]
    for one in found:
        found += type.__subclasses__(one)
    return found


def _keep_calls(mock: Any) -> Restore:
    reference = weakref.ref(mock)
    names: dict[str, Any] = object.__getattribute__(mock, "__dict__")
    lengths = {name: (id(names[name]), len(names[name])) for name in MOCK_LISTS if name in names}
    counts = {name: names[name] for name in MOCK_COUNTS if type(names.get(name)) in (bool, int)}

    def restore() -> None:
        alive = reference()
        if alive is None:
            return
        now: dict[str, Any] = object.__getattribute__(alive, "__dict__")
        if any(id(now.get(name)) != identity for name, (identity, _) in lengths.items()):
            return  # it was reset
        for name, (_, length) in lengths.items():
            del now[name][length:]
        now.update(counts)
        for name, source in MOCK_LAST.items():
            if name in now and source in now:
                now[name] = now[source][-1] if now[source] else None

    del mock, names
    return restore


KEEPERS: tuple[Callable[[], Restore], ...] = (_keep_log_handlers, _keep_hooks, _keep_mocks)
