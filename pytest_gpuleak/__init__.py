"""pytest-gpuleak: which tests leak GPU memory or tensors, whether it really is a leak, and who holds the memory."""

# The types of these names stand in `__init__.pyi`: pytest rewrites this file, and reads what it has rewritten slowly.
__all__ = [
    "Holders",
    "LeakError",
    "Leaks",
    "PeakExplanation",
    "__version__",
    "assert_no_leak",
    "explain_peak",
    "holders",
    "watch",
]


def __getattr__(name: str) -> object:
    """Load the API when it is asked for: pytest imports this package wherever it is installed, switched on or not."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pytest_gpuleak import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted(__all__)
