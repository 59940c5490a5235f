from pytest_gpuleak.api import assert_no_leak, explain_peak, holders, watch
from pytest_gpuleak.model.version import __version__
from pytest_gpuleak.results import Holders, LeakError, Leaks, PeakExplanation

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
