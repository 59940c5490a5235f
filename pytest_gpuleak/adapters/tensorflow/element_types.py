"""The sizes of TensorFlow's element types, by their numbers in tensorflow/core/framework/types.proto."""

from __future__ import annotations

from typing import Any, NamedTuple

from pytest_gpuleak.adapters.tensorflow.lookup import loaded_module

STRING = 7
RESOURCE = 20
VARIANT = 21

STRING_BYTES = 24
"""Bytes of a string's header, which has up to 22 bytes in it; longer strings have memory of their own (tstring.h)."""


class ElementType(NamedTuple):
    """Name of an element type and bytes of an element."""

    name: str
    size: int


_KNOWN: dict[int, ElementType | None] = {STRING: ElementType("string", STRING_BYTES), RESOURCE: None, VARIANT: None}


def element_type(number: int) -> ElementType | None:
    """Return an element type by its number; None if TensorFlow does not know it or its size."""
    if number not in _KNOWN:
        namespace: dict[str, Any] = loaded_module("tensorflow.python.framework.dtypes") or {}
        found = namespace["as_dtype"](number)
        _KNOWN[number] = ElementType(str(found.name), int(found.size)) if found.size else None
    return _KNOWN[number]
