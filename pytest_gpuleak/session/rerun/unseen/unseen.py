"""Hide a re-run from records of pytest and plugins, and restore the process. Loaded with the first suspect."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

from pytest_gpuleak.session.frameworks import shared_frameworks
from pytest_gpuleak.session.rerun.unseen.output import (
    count_failed_subtests,
    keep_failed_subtests,
    muted_output,
    unreported,
)
from pytest_gpuleak.session.rerun.unseen.plugins import hide_from_plugins
from pytest_gpuleak.session.rerun.unseen.process import keep_process
from pytest_gpuleak.session.rerun.unseen.pytest_state import (
    keep_item,
    keep_session,
    keep_temporary_folders,
    revive_doctest,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pytest


class Hidden(NamedTuple):
    """A hidden re-run: `failed_subtests` counts sub-tests, `lift` allows reports and output again if it hangs."""

    failed_subtests: Callable[[], int]
    lift: Callable[[], None]


@contextlib.contextmanager
def unseen(item: pytest.Item) -> Iterator[Hidden]:
    """Undo what a re-run does, or keep it from the records. Raises NotHiddenError if a plugin would record it."""
    with contextlib.ExitStack() as stack:
        silence = stack.enter_context(contextlib.ExitStack())
        silence.enter_context(unreported(item))
        silence.enter_context(muted_output(item.config))
        failed_before = count_failed_subtests(item)
        steps: tuple[Callable[[pytest.Item], Callable[[], None]], ...] = (
            keep_failed_subtests,
            keep_session,
            keep_item,
            keep_temporary_folders,
            revive_doctest,
        )
        for step in steps:
            with contextlib.suppress(Exception):  # an untested version of pytest: the re-run goes on
                stack.callback(step(item))
        stack.callback(hide_from_plugins(item))
        stack.callback(keep_process(shared_frameworks(item.config)))
        yield Hidden(lambda: count_failed_subtests(item) - failed_before, silence.close)
