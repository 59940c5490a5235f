"""Hide a re-run, which is no run of the user's, from records of pytest and plugins, and restore the process's state.

Loaded with the first suspect.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_gpuleak.session.frameworks import shared_frameworks
from pytest_gpuleak.session.rerun.unseen.output import muted_output
from pytest_gpuleak.session.rerun.unseen.plugins import hide_from_plugins
from pytest_gpuleak.session.rerun.unseen.process import keep_process
from pytest_gpuleak.session.rerun.unseen.pytest_state import keep_item, keep_session
from pytest_gpuleak.session.rerun.unseen.reports import failed_subtests, unreported
from pytest_gpuleak.session.rerun.unseen.restoring import keep_mapping, nothing
from pytest_gpuleak.session.rerun.unseen.temporary import keep_temporary_folders

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pytest


class Hidden(NamedTuple):
    """A re-run that is hidden.

    `failed_subtests` counts its failed sub-tests, which fail no phase's report. `lift` allows reports and terminal
    output again: the watchdog calls it from its own thread where the re-run hangs and the session is ended.
    """

    failed_subtests: Callable[[], int]
    lift: Callable[[], None]


@contextlib.contextmanager
def unseen(item: pytest.Item) -> Iterator[Hidden]:
    """Undo what a re-run of the test does within this context, or keep it from the records.

    Raises NotHiddenError if a plugin would record it.
    """
    with contextlib.ExitStack() as stack:
        silence = stack.enter_context(contextlib.ExitStack())
        silence.enter_context(unreported(item))
        silence.enter_context(muted_output(item.config))
        failures = failed_subtests(item)
        failed_before = sum(failures.values())
        steps: tuple[Callable[[pytest.Item], Callable[[], None]], ...] = (
            lambda _: keep_mapping(failures),
            keep_session,
            keep_item,
            keep_temporary_folders,
            _keep_doctest,
        )
        for step in steps:
            with contextlib.suppress(Exception):  # an untested version of pytest: the re-run goes on
                stack.callback(step(item))
        stack.callback(hide_from_plugins(item))
        stack.callback(keep_process(shared_frameworks(item.config)))
        yield Hidden(lambda: sum(failures.values()) - failed_before, silence.close)


def _keep_doctest(item: pytest.Item) -> Callable[[], None]:
    module: Any = sys.modules.get("_pytest.doctest")
    if module is None or module.DoctestItem not in type(item).__mro__:
        return nothing
    from pytest_gpuleak.session.rerun.unseen.doctests import revive

    return revive(item)
