"""Find this process's objects that represent a child, and the lines that start a child."""

from __future__ import annotations

import contextlib
import functools
import sys
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.adapters.creation_lines import OriginTable
from pytest_gpuleak.heap.budget import Budget
from pytest_gpuleak.heap.collector import get_objects, whole_heap
from pytest_gpuleak.heap.safe_access import field_of, is_subclass, mro, pid_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from pytest_gpuleak.model.findings import Holder
    from pytest_gpuleak.model.source_files import Origin

CLASSES = (("subprocess", "Popen", "_execute_child"), ("multiprocessing.process", "BaseProcess", "start"))
"""Module, class, and the method that starts the process, for all classes whose objects represent a child."""

TABLES = (("subprocess", "_active"), ("multiprocessing.process", "_children"))
"""Module and name of the standard library's own tables of children."""

FINALIZERS = "multiprocessing.util._finalizer_registry"
"""What is given to a finalizer (a manager's process) it keeps while its owner lives: who holds that is the better answer."""

SEARCH_STEPS = 15_000_000
"""Steps of the search for holders of the handles (`heap.budget`)."""


def holders_of(pids: set[int], but: Collection[str] = ()) -> dict[int, Holder | None]:
    """Find who holds these children's objects, by pid, or None. Holders of a kind in `but` do not count."""
    from pytest_gpuleak.explain.explain import explain

    handles: list[object] = []
    with whole_heap():
        of_handles = [pid for pid, handle in _handles(pids) if handles.append(handle) is None]  # type: ignore[func-returns-value]
        found = explain(handles, ignore={id(handles), *_tables()}, budget=Budget(SEARCH_STEPS)) if handles else []
    holders: dict[int, Holder | None] = dict.fromkeys(pids)
    for pid, explanation in zip(of_handles, found, strict=True):
        answers = (explanation.holder, *explanation.others)
        named = [holder for holder in answers if holder.named and holder.kind not in but]
        named.sort(key=lambda holder: holder.root == FINALIZERS)
        # Of several objects for one child, one that can be named.
        holders[pid] = holders[pid] or next(iter(named), None)
    return holders


def _tables() -> Iterator[int]:
    """Yield the ids of the library's own tables of children: they hold every child, and no user's edit removes it."""
    for module, name in TABLES:
        yield id(getattr(sys.modules.get(module), name, None))


def _handles(pids: set[int]) -> Iterator[tuple[int, object]]:
    wanted = {id(kind) for kind, _ in _loaded()}
    objects = get_objects()
    kinds = {id(kind): kind for kind in map(type, objects)}
    ours = {number for number, kind in kinds.items() if not wanted.isdisjoint(map(id, mro(kind)))}
    found = [one for one in objects if id(type(one)) in ours] if ours else []
    del objects, kinds
    for handle in found:
        pid = _pid(handle)
        if pid in pids:
            yield pid, handle


def _pid(handle: object) -> int | None:
    pid = field_of(handle, "pid")
    return pid if type(pid) is int else pid_of(handle)


def _loaded() -> Iterator[tuple[type, str]]:
    for module, name, method in CLASSES:
        kind = vars(sys.modules[module]).get(name) if module in sys.modules else None
        if kind is not None and is_subclass(type(kind), type):
            yield kind, method


@contextlib.contextmanager
def noting_starts(is_user_file: Callable[[str], bool]) -> Iterator[Mapping[int, Origin]]:
    """Record, within the context, the first line of a user's file on the stack that starts a child, by its pid."""
    table = OriginTable(is_user_file)
    replaced: list[tuple[type, str, Any, Any]] = []
    try:
        for kind, method in _loaded():
            original = vars(kind).get(method)
            if original is not None:
                noting = _noting(original, table)
                setattr(kind, method, noting)
                replaced.append((kind, method, original, noting))
        yield table
    finally:
        for kind, method, original, noting in replaced:
            if vars(kind).get(method) is noting:  # else the test has replaced it and not put it back
                setattr(kind, method, original)


def _noting(original: Any, table: OriginTable) -> Any:
    @functools.wraps(original)
    def start(process: Any, *arguments: Any, **named: Any) -> Any:
        returned = original(process, *arguments, **named)
        pid = _pid(process)
        if pid is not None:
            table.note(pid)
        return returned

    return start
