"""Each part that hides a re-run works with the pytest and the Python that are installed: a fault would be passed over."""

from __future__ import annotations

import gc
import importlib
import itertools
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any
from unittest.mock import CallableMixin, MagicMock, Mock, NonCallableMock, call

import pytest

from pytest_gpuleak.adapters.registry import own_frameworks
from pytest_gpuleak.session.rerun.unseen import after_verdict, process
from pytest_gpuleak.session.rerun.unseen.plugins import HIDDEN, REFUSED
from pytest_gpuleak.session.rerun.unseen.pytest_state import (
    count_failed_subtests,
    forget_fixtures,
    keep_failed_subtests,
    keep_temporary_folders,
)
from pytest_gpuleak.session.rerun.unseen.restoring import all_of, keep_list, keep_mapping, keep_names
from pytest_gpuleak.session.rerun.unseen.unseen import OF_PROCESS, OF_PYTEST

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.interpreter


@pytest.mark.parametrize("keep", [*OF_PROCESS, *after_verdict.KEEPERS], ids=lambda keep: keep.__name__)
def test_state_of_the_process(keep: Callable[[], Callable[[], None]]) -> None:
    trace = sys.gettrace()
    keep()()
    assert sys.gettrace() is trace


@pytest.mark.parametrize("row", process.SETTINGS, ids=lambda row: row[1])
def test_settings(row: tuple[str, str, str]) -> None:
    process.keep_setting(*row)()


def _new_names() -> list[str]:
    processes, executors = (
        importlib.import_module(name) for name in ("multiprocessing.process", "concurrent.futures.thread")
    )
    executor = executors.ThreadPoolExecutor(1)
    return [threading.Thread().name, processes.BaseProcess().name, executor._thread_name_prefix]


def test_names_of_threads_and_processes() -> None:
    _new_names()
    restore = process.keep_name_counters()
    first, second = _new_names(), _new_names()
    restore()
    assert not set(first) & set(second)
    assert _new_names() == first
    assert _new_names() == second


def test_a_counter_that_a_test_has_replaced_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    for own in (lambda: 7, itertools.count(10, 2).__next__):
        monkeypatch.setattr(threading, "_counter", own)
        restore = process.keep_name_counters()
        threading.Thread()
        restore()
        assert vars(threading)["_counter"] is own


@pytest.mark.torch
def test_state_of_torch() -> None:
    torch: Any = pytest.importorskip("torch")
    before = torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads()
    restores = own_frameworks().keep_states()
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(not before[1])
    torch.set_num_threads(before[2] + 1)
    all_of(restores)()
    assert (torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads()) == before


@pytest.mark.parametrize(
    "keep",
    [one for one in OF_PYTEST if one not in (keep_temporary_folders, forget_fixtures)],
    ids=lambda keep: keep.__name__,
)  # which ask what the plugin's own hooks have noted
def test_state_of_pytest(keep: Callable[[pytest.Item], Callable[[], None]], request: pytest.FixtureRequest) -> None:
    keep(request.node)()


def test_sub_tests_that_failed(request: pytest.FixtureRequest) -> None:
    """The count of the test alone is looked at: pytest has one for each test that has run."""
    counts = request.config.stash[pytest.importorskip("_pytest.subtests").failed_subtests_key]
    own = getattr(request.node, "id", request.node.nodeid)  # as `SubTests` in _pytest/subtests.py, before 9.2 and since
    restore = keep_failed_subtests(request.node)
    counts[own] += 2
    counts["another test"] += 1
    found = count_failed_subtests(request.node)
    restore()
    assert (found, count_failed_subtests(request.node), counts.pop("another test")) == (2, 0, 1)


@pytest.mark.parametrize("name", HIDDEN)
def test_plugins(name: str, request: pytest.FixtureRequest) -> None:
    HIDDEN[name](request.node, pytest.importorskip(name))()


@pytest.mark.parametrize("module", REFUSED)
def test_plugins_without_their_options(module: str, request: pytest.FixtureRequest) -> None:
    assert REFUSED[module](request.node) == ""


def test_what_is_put_back() -> None:
    mapping: dict[str, int] = {"a": 1, "b": 2, "left": 3}
    values, namespace = [1, 2], {"x": 1}
    restore = all_of(
        [
            keep_mapping(mapping, leave=frozenset({"left"})),
            keep_list(values),
            keep_names(namespace, ["x", "y"]),
            lambda: 1 // 0,  # type: ignore[list-item] # one that fails does not stop the others
        ]
    )
    mapping.update(a=5, c=6, left=7)
    del mapping["b"]
    values.append(3)
    namespace.update(x=2, y=3)
    restore()
    assert mapping == {"a": 1, "b": 2, "left": 7}
    assert (values, namespace) == ([1, 2], {"x": 1})


def test_calls_of_mocks_are_cut_back() -> None:
    parent, other = Mock(), MagicMock()
    parent("before")
    parent.child("before")
    other[0]
    restore = after_verdict._keep_mocks()
    parent("again")
    parent.child("again")
    other[1]
    restore()
    assert (parent.call_args_list, parent.call_args) == ([call("before")], call("before"))
    assert parent.mock_calls == [call("before"), call.child("before")]
    assert (parent.method_calls, parent.child.call_count) == ([call.child("before")], 1)
    assert (other.mock_calls, other.__getitem__.call_count) == ([call.__getitem__(0)], 1)


def test_calls_of_mocks_that_are_new_or_reset_stay() -> None:
    """As a first run would have left them."""
    before = Mock()
    restore = after_verdict._keep_mocks()
    new = Mock()
    new(1)
    before.reset_mock()
    before(2)
    restore()
    assert (new.call_count, before.call_args_list) == (1, [call(2)])


def test_mocks_work_as_before_and_are_not_kept_alive() -> None:
    methods = [vars(CallableMixin)["_increment_mock_call"], vars(NonCallableMock)["reset_mock"]]
    mock = Mock()
    reference = weakref.ref(mock)
    restore = after_verdict._keep_mocks()
    mock(1)
    del mock
    gc.collect()
    assert reference() is None
    restore()
    assert [vars(CallableMixin)["_increment_mock_call"], vars(NonCallableMock)["reset_mock"]] == methods
