from pytest_gpuleak.api import Holders, LeakError, Leaks, assert_no_leak, holders, watch
from pytest_gpuleak.model.version import __version__

__all__ = ["Holders", "LeakError", "Leaks", "__version__", "assert_no_leak", "holders", "watch"]
