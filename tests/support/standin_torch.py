"""A few functions of torch, made of stand-in arrays: what cases of the leak corpus need that run where torch does not."""

from __future__ import annotations

import math
from typing import Any, Final

from tests.support.standin import Buffer, Memory

ITEM_BYTES: Final = 4
"""Bytes of a number, as in torch's float32."""

OFFERED: Final = ("ones", "zeros")
"""The functions of torch that are here."""


class Tensor(Buffer):
    """An array of numbers that are all the same."""

    def __init__(self, shape: tuple[int, ...], value: float, device: str, memory: Memory | None = None) -> None:
        super().__init__(ITEM_BYTES * math.prod(shape), device, memory)
        self.shape = shape
        self._value = value

    def __getitem__(self, index: int | tuple[int, ...]) -> Tensor:
        """A view of the same memory."""
        taken = len(index) if isinstance(index, tuple) else 1
        return Tensor(self.shape[taken:], self._value, self.device, self.memory)

    def __add__(self, other: Tensor) -> Tensor:
        return Tensor(self.shape, self._value + other._value, self.device)

    def sum(self) -> Tensor:
        """The sum, as an array of one number."""
        return Tensor((), self._value * math.prod(self.shape), self.device)

    def mean(self) -> Tensor:
        """The mean, as an array of one number."""
        return Tensor((), self._value, self.device)

    def item(self) -> float:
        """The one number."""
        return self._value

    def __gt__(self, other: float) -> bool:
        return self._value > other

    def __eq__(self, other: object) -> bool:
        return self._value == other

    __hash__ = Buffer.__hash__


def _shape(sizes: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(sizes[0]) if sizes and isinstance(sizes[0], tuple | list) else sizes


def ones(*sizes: Any, device: str = "cpu") -> Tensor:
    """An array of ones."""
    return Tensor(_shape(sizes), 1.0, device)


def zeros(*sizes: Any, device: str = "cpu") -> Tensor:
    """An array of zeros."""
    return Tensor(_shape(sizes), 0.0, device)
