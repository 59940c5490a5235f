"""Reading the objects that stand for a process, without running a user's code."""

from __future__ import annotations

from typing import Any


def pid_of(process: Any) -> int | None:
    """The pid of a ``multiprocessing`` process that has started; None for any other object."""
    pid = field_of(field_of(process, "_popen"), "pid")
    return pid if type(pid) is int else None


def field_of(value: Any, name: str) -> Any:
    """An instance's attribute from its own dict: no property or `__getattr__` of a user's class runs."""
    try:
        return object.__getattribute__(value, "__dict__").get(name)
    except AttributeError:
        return None
