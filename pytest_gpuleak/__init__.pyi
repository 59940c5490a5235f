from pytest_gpuleak.api import Holders, LeakError, Leaks, PeakExplanation, assert_no_leak, explain_peak, holders, watch
from pytest_gpuleak.model.version import __version__

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
