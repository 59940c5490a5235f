"""Read objects that stand for a process, without running user code."""

from __future__ import annotations

from typing import Any


def pid_of(process: Any) -> int | None:
    """Return the pid of a started ``multiprocessing`` process; None for any other object."""
    pid = field_of(field_of(process, "_popen"), "pid")
    return pid if type(pid) is int else None


def field_of(value: Any, name: str) -> Any:
    """Return an attribute from the instance's own dict: runs no property or `__getattr__` of a user's class."""
    try:
        return object.__getattribute__(value, "__dict__").get(name)
    except AttributeError:
        return None
