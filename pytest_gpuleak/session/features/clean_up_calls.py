"""Hand the suite's own clean-up calls to what measures them, which the first such call loads."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Literal

    import pytest

    from pytest_gpuleak.model.clean_up import CleanUp
    from pytest_gpuleak.session.features.suite_clean_up import SuiteCleanUp


class CleanUpCalls:
    """The clean-up calls of one process."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._began: float | None = None
        self._measured: SuiteCleanUp | None = None

    def __call__(self, what: Literal["gc.collect", "empty_cache"], call: Callable[[], Any]) -> Any:
        """Return what a user's call returns. Its errors pass."""
        __tracebackhide__ = True  # a failure's text shows only the user's frames, as without the plugin
        measured = self._measured
        if measured is None:
            try:
                from pytest_gpuleak.session.features.suite_clean_up import SuiteCleanUp

                measured = self._measured = SuiteCleanUp(self._config)
            except Exception:  # noqa: BLE001 - a test may have replaced the file system or the import
                return call()
        return measured.time(what, call)

    def begin(self) -> None:
        """Begin to measure the run, of which the calls are a part."""
        self._began = perf_counter()

    def sums(self) -> tuple[float, list[CleanUp]]:
        """Return the seconds of the run so far, and the calls in it. A process that runs no test has neither."""
        run_s = 0.0 if self._began is None else perf_counter() - self._began
        return run_s, [] if self._measured is None else self._measured.entries()
