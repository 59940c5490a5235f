"""Replace a function of a library's for a while."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextlib.contextmanager
def replaced(owner: Any, name: str, function: Callable[..., object]) -> Iterator[None]:
    """Put a function in the place of an attribute within the context. What other code has put there meanwhile stays."""
    real = getattr(owner, name)
    setattr(owner, name, function)
    try:
        yield
    finally:
        if getattr(owner, name, None) is function:
            setattr(owner, name, real)
