"""Findings wait for the names of their holders, and one search names all."""

from __future__ import annotations

import importlib
import signal
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

from pytest_gpuleak.session.pytest_internals import paused_timer

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Run, Runner


LEAKS = """
    import pytest, sys
    import library
    from library import stores

    @pytest.mark.parametrize("number", range(4))
    def test_it(number):
        stores[number].kept.append(Buffer())
"""


@pytest.fixture
def library(install: Callable[[dict[str, str]], None]) -> None:
    """An installed library with six modules."""
    stores = [f"store{number}" for number in range(6)]
    names = ", ".join(stores)
    install(
        {"__init__": f"from library import {names}\n\nstores = ({names})\n", **dict.fromkeys(stores, "kept = []\n")}
    )


def holders(run: Run) -> list[str]:
    return [finding["holder"]["text"] for test in run.report["tests"] for finding in test["findings"]]


@pytest.mark.usefixtures("library")
def test_one_search_names_all_holders_those_of_notes_too_where_a_report_is_written(
    run: Runner, searches: list[int]
) -> None:
    notes = """
    @pytest.mark.parametrize("number", range(4))
    def test_note(number):
        stores[number].last = Buffer(40)
    """
    found = run(LEAKS + notes)
    assert list(found.verdicts.values()) == ["leaked"] * 4 + ["noted"] * 4
    assert holders(found) == [f"library.store{number}.{name}" for name in ("kept[0]", "last") for number in range(4)]
    assert len(searches) == 1


@pytest.mark.usefixtures("library")
def test_what_fails_by_its_size_alone_is_searched_for_at_once(run: Runner, searches: list[int]) -> None:
    """It may be a local variable of a plugin's frame, and no leak: only its holder tells."""
    found = run("""
        from library import store0

        def test_it():
            store0.last = Buffer(2**21)
    """)
    assert found.holder("test_it") == "library.store0.last"
    assert found.verdicts == {"test_it": "leaked"}
    assert searches == [1]


def test_what_a_wider_fixture_owns_is_explained_before_its_teardown(run: Runner, searches: list[int]) -> None:
    found = run("""
        import pytest

        @pytest.fixture(scope="module")
        def cache():
            return []

        @pytest.mark.parametrize("number", range(4))
        def test_it(cache, number):
            cache.append(Buffer())

        def test_last(cache):
            pass
    """)
    assert found.verdicts == {**{f"test_it[{number}]": "leaked" for number in range(4)}, "test_last": "clean"}
    assert {text.partition("[")[0] for text in holders(found)} == {"fixture 'cache'"}
    assert len(searches) == 1
    # Its time is the suspects', not the clean test's in whose teardown it came.
    clean = found.tests["test_last"]
    assert clean["overhead_s"] < found.tests["test_it[0]"]["suspect_s"]["search"]


@pytest.mark.usefixtures("library")
def test_the_teardown_of_a_class_that_frees_nothing_does_not_end_the_wait(run: Runner, searches: list[int]) -> None:
    found = run("""
        import pytest, unittest
        from library import stores

        @pytest.fixture(scope="module", autouse=True)
        def seed():
            pass

        class Base(unittest.TestCase):
            @classmethod
            def setUpClass(cls):
                super().setUpClass()

        class TestFirst(Base):
            def test_it(self):
                stores[0].kept.append(Buffer())

        class TestSecond(Base):
            def test_it(self):
                stores[1].kept.append(Buffer())
    """)
    assert holders(found) == ["library.store0.kept[0]", "library.store1.kept[0]"]
    assert len(searches) == 1


OF_CLASS = "@pytest.fixture(scope='class', autouse=True)"
TEARDOWNS = {
    "TearDown": "@classmethod\n    def tearDownClass(cls): cls.kept.clear()",
    "Cleanup": "@classmethod\n    def setUpClass(cls): cls.addClassCleanup(cls.kept.clear)",
    "Finalizer": f"{OF_CLASS}\n    def cleared(self, request): request.addfinalizer(request.cls.kept.clear)",
    "Yield": f"{OF_CLASS}\n    def cleared(self, request): yield; request.cls.kept.clear()",
}


def test_what_a_class_frees_is_explained_before_its_teardown(run: Runner) -> None:
    classes = "".join(
        f"""
class Test{name}(unittest.TestCase):
    kept = []
    {teardown}
    def test_leaks(self):
        self.kept.append(Buffer())
    def test_next(self):
        pass
"""
        for name, teardown in TEARDOWNS.items()
    )
    assert holders(run(f"import pytest, unittest\n{classes}")) == [f"test_it.Test{name}.kept[0]" for name in TEARDOWNS]


def test_they_are_named_before_a_finalizer_of_a_wider_node_frees_them(run: Runner) -> None:
    found = run("""
        import pytest

        @pytest.mark.parametrize("scope", [pytest.Session, pytest.Module])
        def test_it(scope, request):
            buffer = Buffer()
            request.node.getparent(scope).addfinalizer(lambda: buffer)

        def test_next():
            pass
    """)
    name = "finalizer test_it.test_it.<locals>.<lambda> given to"
    assert holders(found) == [f"{name} <{node}>: __closure__[0].cell_contents" for node in ("Session", "Module")]


@pytest.mark.usefixtures("library", "without_roots")
def test_what_a_frame_has_taken_before_the_search_stays_a_finding(run: Runner) -> None:
    found = run("""
        import pytest
        from library import store0

        class TakesAll:
            @pytest.hookimpl(wrapper=True, tryfirst=True)
            def pytest_sessionfinish(self):
                taken = store0.kept[:]
                store0.kept.clear()
                return (yield)

        def test_it(request):
            if not store0.kept:
                request.config.pluginmanager.register(TakesAll())
            store0.kept.append(Buffer())
    """)
    assert found.verdicts == {"test_it": "leaked"}
    assert "f_locals['taken'][0]" in found.holder("test_it")


@pytest.mark.usefixtures("library", "without_roots")
def test_what_was_freed_before_the_search_says_so(run: Runner) -> None:
    found = run("""
        from library import store0

        def test_it():
            store0.kept.append(Buffer())

        def test_that_cleans():
            store0.kept.clear()
    """)
    assert found.verdicts == {"test_it": "leaked", "test_that_cleans": "clean"}
    assert found.holder("test_it") == "unknown: the memory was freed before the search, at the end of the run"


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("end", "options"),
    [
        ("pass", ["-x"]),
        ("pytest.exit('enough')", []),
        ("raise KeyboardInterrupt", []),
    ],
)
def test_a_run_that_ends_early_names_its_holders(run: Runner, end: str, options: list[str]) -> None:
    found = run(
        f"""
        import pytest
        from library import store0

        def test_it():
            store0.kept.append(Buffer())

        def test_next():
            {end}
        """,
        *options,
        apart="Keyboard" in end,
    )
    assert found.verdicts["test_it"] == "leaked"
    assert found.holder("test_it") == "library.store0.kept[0]"


@pytest.mark.usefixtures("library", "without_roots")
def test_a_search_that_is_interrupted_at_the_end_says_so(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pytest_gpuleak.engine.late.LateSearch._search", interrupted)
    found = run("""
        from library import store0

        def test_it():
            store0.kept.append(Buffer())
    """)
    assert found.result.ret == pytest.ExitCode.INTERRUPTED
    assert found.verdicts == {"test_it": "leaked"}
    assert found.holder("test_it") == "unknown: the search at the end of the run was interrupted by Ctrl-C"
    found.result.stdout.fnmatch_lines(["*1 leaked*"])


@pytest.mark.usefixtures("library")
def test_what_a_global_held_has_its_name_though_it_was_freed_before_the_search(run: Runner) -> None:
    found = run("""
        import pytest
        from library import stores

        @pytest.mark.parametrize("number", range(6))
        def test_it(number):
            if number == 2:
                stores[0].kept.clear()  # as a cache of a limited size lets its oldest go
            else:
                stores[number].kept.append(Buffer())
    """)
    assert found.verdicts == {f"test_it[{n}]": "clean" if n == 2 else "leaked" for n in range(6)}
    assert holders(found) == [f"library.store{number}.kept[0]" for number in (0, 1, 3, 4, 5)]


@pytest.mark.usefixtures("library", "without_roots")
@pytest.mark.parametrize(
    ("target", "said", "told"),
    [
        (
            "search_together",
            "a fault of ours",
            ["*the search for the holders of findings that waited failed*a fault of ours*"],
        ),
        ("LateSearch._judged", "unknown", []),
    ],
)
def test_a_search_that_fails_costs_the_holders_alone(
    run: Runner, monkeypatch: pytest.MonkeyPatch, target: str, said: str, told: list[str]
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a fault of ours")

    importlib.import_module("pytest_gpuleak.engine.late")
    monkeypatch.setattr(f"pytest_gpuleak.engine.late.{target}", fail)
    found = run(LEAKS)
    assert set(found.verdicts.values()) == {"leaked"}
    assert all(text.startswith("unknown") and said in text for text in holders(found))
    found.result.stdout.fnmatch_lines(told)


@pytest.mark.usefixtures("library", "without_roots")
def test_the_text_for_junit_says_where_to_look(run: Runner, pytester: pytest.Pytester) -> None:
    found = run(LEAKS, "--junitxml=junit.xml")
    texts = [error.text or "" for error in ElementTree.parse(pytester.path / "junit.xml").iter("error")]
    assert len(texts) == 4
    assert all("searched for at the end of the run" in text for text in texts)
    found.result.stdout.fnmatch_lines(["*held by*library.store3.kept*"])


@pytest.mark.slow
@pytest.mark.usefixtures("library", "cold")  # xdist hands on the `sys.path` that it found when it was imported
def test_workers_send_what_they_find_at_their_end(run: Runner) -> None:
    found = run(LEAKS, "-n", "1", apart=True)
    assert set(found.verdicts.values()) == {"leaked"}
    assert holders(found) == [f"library.store{number}.kept[0]" for number in range(4)]


@pytest.mark.slow
@pytest.mark.usefixtures("library")
def test_a_run_that_is_killed_keeps_the_verdicts(run: Runner) -> None:
    killed = "\n    def test_that_kills():\n        import os, signal\n        os.kill(os.getpid(), 9)\n"
    found = run(LEAKS + killed, apart=True)
    assert list(found.verdicts.values()) == ["leaked"] * 4
    assert holders(found) == [f"library.store{number}.kept[0]" for number in range(4)]


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="the system has no alarm clock")
def test_a_timeout_does_not_count_what_the_plugin_does_within_a_test() -> None:
    rung: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _: rung.append(number))
    try:
        signal.setitimer(signal.ITIMER_REAL, 600)
        with paused_timer():
            assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
        assert not rung
        left, _ = signal.getitimer(signal.ITIMER_REAL)
        assert 0 < left <= 600
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_clock_that_does_not_run_is_not_started() -> None:
    with paused_timer():
        pass
    assert not hasattr(signal, "getitimer") or signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.mark.usefixtures("library")
def test_who_holds_the_memory_is_searched_for_where_it_runs_out(run: Runner) -> None:
    found = run("""
        from library import store0

        def test_it():
            store0.kept.append(Buffer(2**18))

        def test_next():
            raise MemoryError
    """)
    section = found.result.stdout.str().partition("Memory (who holds it)")[2]
    assert "library.store0.kept" in section.partition("GPU LEAKS")[0]
