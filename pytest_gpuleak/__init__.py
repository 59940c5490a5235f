"""pytest-gpuleak: which tests leak GPU memory or tensors, whether it really is a leak, and who holds the memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_gpuleak.inspection import Holders, holders
    from pytest_gpuleak.watching import LeakError, Leaks, assert_no_leak, watch

__version__ = "0.1.0"

__all__ = ["Holders", "LeakError", "Leaks", "__version__", "assert_no_leak", "holders", "watch"]


def __getattr__(name: str) -> Any:
    """Load the API when it is asked for: pytest imports this package wherever it is installed, switched on or not."""
    if name == "holders":
        import importlib

        return importlib.import_module("pytest_gpuleak.holders")  # a package that can be called
    if name == "Holders":
        from pytest_gpuleak.inspection import Holders

        return Holders
    if name in __all__:
        from pytest_gpuleak import watching

        return getattr(watching, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
