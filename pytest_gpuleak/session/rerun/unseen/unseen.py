"""Hide a re-run from records of pytest and plugins, and restore the process. Loaded with the first suspect."""

from __future__ import annotations

import contextlib
import zlib
from functools import partial
from typing import TYPE_CHECKING

from pytest_gpuleak.session.frameworks import shared_frameworks
from pytest_gpuleak.session.rerun.unseen import output, process, pytest_state
from pytest_gpuleak.session.rerun.unseen.plugins import hide_from_plugins
from pytest_gpuleak.session.rerun.unseen.random_state import keep_random_states
from pytest_gpuleak.session.rerun.unseen.restoring import all_of, keep_each

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pytest

    from pytest_gpuleak.session.rerun.unseen.restoring import Postponed, Restore

MUTED: tuple[Callable[[pytest.Config], Restore], ...] = (
    output.mute_terminal,
    output.mute_capture,
    output.mute_log,
)
"""What of a re-run's output is dropped."""

OF_PYTEST: tuple[Callable[[pytest.Item], Restore], ...] = (
    pytest_state.keep_failed_subtests,
    pytest_state.keep_session,
    pytest_state.keep_junit,
    pytest_state.keep_cache,
    pytest_state.keep_fault_handler,
    pytest_state.keep_item,
    pytest_state.forget_fixtures,
    pytest_state.renew_instance,
    pytest_state.revive_doctest,
)
"""What pytest and plugins keep on the test, on the session and in the cache."""

OF_PROCESS: tuple[Callable[[], Restore], ...] = (
    process.pause_tracing,  # and resumed last: it would trace the others
    process.keep_environment,
    process.keep_sys,
    process.keep_replaced_hooks,
    process.keep_name_counters,
    process.keep_settings,
    process.keep_modules,
    process.keep_logging,
    process.keep_locale,
    process.keep_decimal,
    process.keep_context_variables,
    process.keep_event_loop,
    process.keep_tracemalloc,
)
"""What a test may have set in the process. Lists and hooks, which grow, are put back after the verdict: see `after_verdict`."""


@contextlib.contextmanager
def unseen(item: pytest.Item, postponed: Postponed) -> Iterator[tuple[Callable[[], int], Restore]]:
    """Undo what a re-run does, or keep it from the records. Raises NotHiddenError if a plugin would record it.

    Give what counts the sub-tests that have failed, and what allows reports and output again, if the re-run hangs. What
    fails to be noted, in an untested version of pytest or another interpreter, is left as the re-run leaves it.
    """
    with contextlib.ExitStack() as stack:
        silence = stack.enter_context(contextlib.ExitStack())
        silence.callback(output.swallow_reports(item))
        silence.callback(keep_each(partial(mute, item.config) for mute in MUTED))
        failed_before = pytest_state.count_failed_subtests(item)
        stack.callback(keep_each(partial(keep, item) for keep in OF_PYTEST))
        stack.callback(hide_from_plugins(item))
        number = postponed.begin_run([partial(pytest_state.keep_temporary_folders, item)])
        if postponed.process is None:
            stack.callback(keep_process(item, number))
        yield lambda: pytest_state.count_failed_subtests(item) - failed_before, silence.close


def keep_process(item: pytest.Item, number: int) -> Restore:
    """Note what a test may set in the process, and seed the random generators for the re-run of this number, from 1 on."""
    random_states = partial(keep_random_states, zlib.crc32(f"{item.nodeid} {number}".encode()))
    states = shared_frameworks(item.config).keep_states
    return keep_each([*OF_PROCESS, random_states, lambda: all_of(states())])
