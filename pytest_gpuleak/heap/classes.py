"""Read classes without running their metaclasses' code."""

from __future__ import annotations

_read_mro = type.__dict__["__mro__"].__get__


def class_lines(kind: type) -> tuple[type, ...]:
    """Return a class's method resolution order. ``cls.__mro__`` would run a metaclass's ``__getattribute__``."""
    lines: tuple[type, ...] = _read_mro(kind)
    return lines


def is_kind_of(kind: type, base: type) -> bool:
    """Tell whether `base` is in a class's method resolution order, by identity.

    ``isinstance`` asks ``__class__``, which proxies answer with side effects; ``in`` may call a metaclass's ``__eq__``.
    """
    for candidate in _read_mro(kind):  # noqa: SIM110 - half the time of `any`, for every container met
        if candidate is base:
            return True
    return False
