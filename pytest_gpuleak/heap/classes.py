"""Classes, read without asking their metaclasses, whose code is a stranger's."""

from __future__ import annotations

_read_mro = type.__dict__["__mro__"].__get__


def class_lines(kind: type) -> tuple[type, ...]:
    """The method resolution order of a class, read without asking its metaclass.

    ``cls.__mro__`` goes through a metaclass's ``__getattribute__``, which is a stranger's code.
    """
    lines: tuple[type, ...] = _read_mro(kind)
    return lines


def is_kind_of(kind: type, base: type) -> bool:
    """Whether `base` is in the class's method resolution order, by identity.

    ``isinstance`` asks ``__class__``, which proxies answer with side effects; ``in`` on a tuple may call a
    metaclass's ``__eq__``.
    """
    return id(base) in map(id, _read_mro(kind))
