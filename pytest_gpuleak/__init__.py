"""pytest-gpuleak: which tests leak GPU memory or tensors, whether it really is a leak, and who holds the memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_gpuleak.api import Holders, LeakError, Leaks, assert_no_leak, holders, watch
    from pytest_gpuleak.model.version import __version__

__all__ = ["Holders", "LeakError", "Leaks", "__version__", "assert_no_leak", "holders", "watch"]


def __getattr__(name: str) -> Any:
    """Load the API when it is asked for: pytest imports this package wherever it is installed, switched on or not."""
    if name == "__version__":
        from pytest_gpuleak.model.version import __version__

        return __version__
    if name in __all__:
        from pytest_gpuleak import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
