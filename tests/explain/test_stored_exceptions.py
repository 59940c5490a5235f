"""Exceptions that user code keeps, and those that pytest keeps of a failed test."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.explain.explain import explain

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Run, Runner

pytestmark = pytest.mark.newest

HEAD = """
    import functools, sys
    import pytest

    LAST, ERRORS, BOX = None, [], {}

    class Registry:
        last = None

    class Trainer:
        pass

    @pytest.fixture(scope="module")
    def shared():
        return Trainer()

    def fail(part):
        raise ValueError("nan")

    def caught():
        try:
            fail(Buffer(2**21))
        except ValueError as error:
            return error

    @functools.lru_cache
    def cached(key):
        return caught()

    def test_last(shared, request):
        pass
"""
FRAME = ".__traceback__.tb_next.tb_frame.f_locals['part']"
KEPT = {
    "global": ("global LAST; LAST = caught()", f"test_it.LAST{FRAME}", "module"),
    "list": ("ERRORS.append(caught())", f"test_it.ERRORS[0]{FRAME}", "module"),
    "class": ("Registry.last = caught()", f"test_it.Registry.last{FRAME}", "class"),
    "dict": ("BOX['last'] = caught()", f"test_it.BOX['last']{FRAME}", "module"),
    "cache": ("cached(1)", f"test_it.cached (cached result){FRAME}", "cache"),
    "fixture": ("shared.error = caught()", f"fixture 'shared'.error{FRAME}", "fixture"),
    "local of its own frame": ("error = caught(); shared.local = error", f"fixture 'shared'.local{FRAME}", "fixture"),
    "context": (
        """
        try:
            try:
                fail(Buffer(2**21))
            except ValueError:
                raise KeyError(1)
        except KeyError as error:
            shared.second = error.with_traceback(None)
        """,
        "fixture 'shared'.second.__context__.__traceback__.tb_next.tb_frame.f_locals['part']",
        "fixture",
    ),
    "excinfo": (
        """
        with pytest.raises(ValueError) as info:
            fail(Buffer(2**21))
        shared.info = info
        """,
        "fixture 'shared'.info._excinfo[2].tb_next.tb_frame.f_locals['part']",
        "fixture",
    ),
    "traceback": (
        """
        try:
            fail(Buffer(2**21))
        except ValueError:
            shared.trace = sys.exc_info()[2]
        """,
        "fixture 'shared'.trace.tb_next.tb_frame.f_locals['part']",
        "fixture",
    ),
    "argument": ("shared.raised = ValueError(Buffer(2**21))", "fixture 'shared'.raised.args[0]", "fixture"),
    "config": ("request.config.last = caught()", f"pytest config.last{FRAME}", "fixture"),
    "session": ("request.session.last = caught()", f"pytest session.last{FRAME}", "fixture"),
}


def _test(body: str, name: str = "test_it") -> str:
    lines = [line for line in body.splitlines() if line.strip()]
    shift = min(len(line) - len(line.lstrip()) for line in lines)
    return f"\n    def {name}(shared, request):\n" + "".join(f"        {line[shift:]}\n" for line in lines)


def _run(run: Runner, *tests: str) -> Run:
    head, last = HEAD.split("    def test_last", 1)
    return run(head + "".join(tests) + "\n    def test_last" + last)


def test_an_exception_is_led_to_from_who_keeps_it(run: Runner) -> None:
    names = {f"test_{name.replace(' ', '_')}": name for name in KEPT}
    ran = _run(run, *(_test(KEPT[name][0], test) for test, name in names.items()))
    found, expected = {}, {}
    for test, name in names.items():
        _, text, kind = KEPT[name]
        finding = ran.finding(test)
        holder = finding["holder"]
        shown = holder["root"] + "".join(step["edge"] for step in holder["path"])
        found[name] = (shown, holder["kind"], finding["kind"], ran.verdicts[test], bool(finding["hint"]))
        # What a wider fixture alone holds is judged when that is torn down.
        verdict = "noted" if "'shared'" in text else "leaked"
        expected[name] = (text, kind, "growing" if name == "list" else "retained", verdict, True)
        if kind != "fixture" or "shared" in text:
            assert holder["file"] == "test_it.py", name
    assert found == expected
    assert ran.verdicts["test_last"] == "clean"


@pytest.mark.interpreter
@pytest.mark.skipif(sys.version_info < (3, 11), reason="exception groups came with Python 3.11")
def test_an_exception_of_a_group(run: Runner) -> None:
    ran = _run(run, _test("shared.error = ExceptionGroup('several', [KeyError(), caught()])"))
    holder = ran.finding("test_it")["holder"]
    assert holder["root"] == "fixture 'shared'"
    assert [step["edge"] for step in holder["path"]][:3] == [".error", ".exceptions", "[1]"]


def test_an_exception_replaced_by_each_run_does_not_grow_where_its_holder_is_known(run: Runner) -> None:
    """The second test's holder is recognised, so that the heap is not collected; the old exception is in a cycle."""
    keep = "error = caught(); shared.error = error"
    ran = _run(run, _test(keep), _test(keep.replace("shared.error", "shared.other"), "test_again"))
    assert [ran.finding(name)["kind"] for name in ("test_it", "test_again")] == ["retained", "retained"]


@pytest.mark.interpreter
def test_what_pytest_keeps_of_a_failed_test_is_blamed_on_no_test(run: Runner) -> None:
    # In a process of its own: in this one, pytester notes the calls of hooks, with every exception, below a class.
    ran = run(
        """
        import pytest, unittest

        def pytest_runtest_makereport(item, call):
            item.kept = call.excinfo

        @pytest.fixture(scope="module")
        def broken():
            kept = Buffer(2**21)
            raise ValueError(kept)

        def test_fails():
            kept = Buffer(2**21)
            assert not kept

        def test_errs(broken):
            pass

        class TestOld(unittest.TestCase):
            def test_fails_too(self):
                kept = Buffer(2**21)
                self.fail()

        def test_after():
            pass
    """,
        apart=True,
    )
    assert ran.tests["test_after"]["verdict"] == "clean"
    assert [ran.tests[name]["verdict"] for name in ("test_fails", "test_errs", "TestOld::test_fails_too")] == [
        "unchecked"
    ] * 3
    # What the collector freed of the fixture's frame is a note.
    kinds = {finding["kind"] for fixture in ran.report["fixtures"] for finding in fixture["findings"]}
    assert kinds <= {"cycle"}


class Thing:
    """Stands for a tensor."""


def _raise(kept: object) -> None:
    raise ValueError


@pytest.mark.interpreter
def test_an_exception_that_the_runner_caught_is_a_traceback(request: pytest.FixtureRequest) -> None:
    from _pytest.runner import CallInfo

    box = [Thing()]
    item: Any = request.node
    item.kept = CallInfo.from_call(lambda: _raise(box[0]), "call").excinfo
    try:
        found = explain(box, ignore={id(sys._getframe())})[0].holder
        item.kept = item.kept.value
        direct = explain(box, ignore={id(sys._getframe())})[0].holder
    finally:
        del item.kept
    assert (found.kind, direct.kind) == ("traceback", "traceback")


@pytest.mark.interpreter
def test_an_exception_that_a_thread_keeps_is_the_threads(make_thread: Callable[[object], Any]) -> None:
    box = [Thing()]
    thread = make_thread(box[0])
    holder = explain(box, ignore={id(sys._getframe())})[0].holder
    thread.finish.set()
    thread.join()
    assert holder.kind == "thread"
    assert "thread 'keeper'" in holder.text
    assert holder.text.endswith(".f_locals['kept']")


@pytest.fixture
def make_thread() -> Callable[[object], Any]:
    import threading

    class Keeper(threading.Thread):
        def __init__(self) -> None:
            super().__init__(name="keeper", daemon=True)
            self.finish, self.ready = threading.Event(), threading.Event()
            self.given: list[object] = []

        def run(self) -> None:
            try:
                _raise(self.given.pop())
            except ValueError as error:
                self.error = error
            self.ready.set()
            self.finish.wait(60)

    def make(value: object) -> Keeper:
        keeper = Keeper()
        keeper.given.append(value)
        keeper.start()
        keeper.ready.wait(60)
        return keeper

    return make
