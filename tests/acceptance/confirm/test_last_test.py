"""A test that ends wider fixtures is judged as any other, though its re-run sets these up again."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Run, Runner

pytestmark = pytest.mark.newest

BODIES = {
    "shifts": "LAST[1:] = LAST[:1]; LAST[:1] = [Buffer(16)]",
    "fills_a_cache_beside_a_ring": (
        "DONE.setdefault(len(LAST), Buffer(24)); ring = [Buffer(16)]; ring.append(ring); LAST.append(ring); LAST[:-1] = []"
    ),
    "leaks_beside_what_a_fixture_holds": "used.kept.append(Buffer(16)); KEPT.append(Buffer(8))",
    "leaks_beside_what_a_fixture_holds_in_a_cycle": "used.kept.append([Buffer(16), used]); KEPT.append(Buffer(8))",
    "replaces_beside_what_a_fixture_holds": "used.last = Buffer(16); SLOT[:] = [Buffer(8)]",
    "replaces": "SLOT[:] = [Buffer(8)]",
    "leaks_into_the_fixture": "used.kept.append(Buffer(16))",
    "leaks_into_the_fixture_in_a_cycle": "used.kept.append([Buffer(16), used])",
    "leaks_into_both": "used.kept.append(Buffer(16)); KEPT.append(Buffer(8))",
    "replaces_in_the_fixture": "used.last = Buffer(16)",
    "replaces_in_the_fixture_in_a_cycle": "used.last = [Buffer(16), used]",
    "replaces_memory_of_the_fixtures_own": "used.table.memory = type(used.table.memory)(32); used.last = Buffer(16)",
    "fills_the_fixture": "used.kept or used.kept.append(Buffer(2**21))",
}
GROWS = {name for name in BODIES if not name.startswith(("replaces", "fills_the"))}
"""What adds in its second run: a third run of a test that shifts or fills a cache would not."""


HEAD = """
    import types
    import pytest
    from tests.support.standin import Buffer
    LAST, DONE, KEPT, SLOT = [], {}, [], []

    @pytest.fixture(scope="session", autouse=True)
    def unrelated():
        return Buffer(64)

    @pytest.fixture(scope="module")
    def used():
        return types.SimpleNamespace(last=None, kept=[], table=Buffer(32))
"""
OTHER = """
    def test_other(used):
        pass
"""


@pytest.mark.interpreter
@pytest.mark.parametrize("name", BODIES)
def test_who_ends_a_session_alone_is_judged_as_among_others(run: Runner, name: str) -> None:
    found = run(f"{HEAD}\n    def test_{name}(used):\n        {BODIES[name]}\n")
    assert failing_kinds(found) == {f"test_{name}": {"growing"} if name in GROWS else set()}


@pytest.mark.interpreter
@pytest.mark.parametrize("ends", [False, True], ids=["first of its module", "last of its module"])
def test_a_verdict_does_not_depend_on_whether_fixtures_end_with_the_test(
    run: Runner, pytester: pytest.Pytester, *, ends: bool
) -> None:
    for name, body in BODIES.items():
        it = f"\n    def test_{name}(used):\n        {body}\n"
        pytester.makepyfile(**{f"test_of_{name}": textwrap.dedent(HEAD + (OTHER + it if ends else it + OTHER))})
    found = failing_kinds(run(""))
    found.pop("test_other")
    assert found == {f"test_{name}": {"growing"} if name in GROWS else set() for name in BODIES}


@pytest.mark.interpreter
@pytest.mark.parametrize("after", ["", OTHER], ids=["last", "among others"])
def test_a_finalizer_of_a_wider_node_keeps_what_it_refers_to(run: Runner, after: str) -> None:
    found = run(
        """
    import pytest

    @pytest.fixture
    def used():
        pass

    def test_leaks(request):
        buffer = Buffer()
        request.session.addfinalizer(lambda: buffer)

    def test_leaks_by_a_function_of_no_module(request):
        request.node.parent.addfinalizer(eval("lambda: buffer", {"buffer": Buffer()}))
    """
        + after
    )
    kinds = failing_kinds(found)
    assert kinds["test_leaks"] == kinds["test_leaks_by_a_function_of_no_module"] == {"growing"}
    name = "finalizer test_it.test_leaks.<locals>.<lambda> given to <Session>"
    assert found.holder("test_leaks") == f"{name}: __closure__[0].cell_contents"


def failing_kinds(found: Run) -> dict[str, set[str]]:
    """The kinds of the findings that fail, by test, of which each but `test_other` has left something."""
    kinds = {name: {one["kind"] for one in test["findings"] if one["failed"]} for name, test in found.tests.items()}
    expected = {name: "leaked" if failing else "noted" for name, failing in kinds.items()}
    assert found.verdicts == expected | dict.fromkeys({"test_other"} & kinds.keys(), "clean")
    return kinds


WIDER = {
    "a method of xunit's": """
    class TestIt:
        @classmethod
        def setup_class(cls):
            cls.kept = []

        def test_first(self):
            self.kept.append(Buffer(16))

        def test_last(self):
            self.kept.append(Buffer(16))
    """,
    "one that is undone": """
    class TestIt:
        @classmethod
        def teardown_class(cls):
            KEPT.clear()

        def test_first(self):
            KEPT.append(Buffer(16))

        def test_last(self):
            KEPT.append(Buffer(16))
    """,
    "a module's": """
    def setup_module(module):
        module.MADE = []

    def teardown_module(module):
        del module.MADE

    def test_first():
        MADE.append(Buffer(16))

    def test_last():
        MADE.append(Buffer(16))
    """,
    "unittest's": """
    class TestIt(unittest.TestCase):
        @classmethod
        def setUpClass(cls):
            cls.kept = []
            cls.addClassCleanup(cls.kept.clear)

        def test_first(self):
            self.kept.append(Buffer(16))

        def test_last(self):
            self.kept.append(Buffer(16))
    """,
    "what a fixture sets in the process": """
    @pytest.fixture(scope="module")
    def setting():
        os.environ["GPULEAK_SET"] = "1"
        KEPT.clear()
        yield
        del os.environ["GPULEAK_SET"]
        KEPT.clear()

    def test_first(setting):
        assert os.environ["GPULEAK_SET"]
        KEPT.append(Buffer(16))

    def test_last(setting):
        assert os.environ["GPULEAK_SET"]
        KEPT.append(Buffer(16))
    """,
    "the host's memory": """
    @pytest.fixture(scope="module")
    def log():
        return []

    def test_first(log):
        log.append(bytearray(12 << 20))

    def test_last(log):
        log.append(bytearray(12 << 20))
    """,
    "a teardown that fails the second time": """
    DONE = []

    @pytest.fixture(scope="module")
    def log():
        yield []
        DONE.append(1)
        assert len(DONE) < 2

    def test_first(log):
        log.append(Buffer(16))

    def test_last(log):
        log.append(Buffer(16))
    """,
}


@pytest.mark.parametrize("name", WIDER)
def test_who_ends_wider_fixtures_is_told_what_grows_in_them(run: Runner, name: str) -> None:
    found = run(f"""
    import os
    import unittest
    import pytest
    KEPT = []
    {WIDER[name]}
    """)
    found.result.assert_outcomes(passed=2)
    assert {verdict.rpartition("::")[2]: one for verdict, one in found.verdicts.items()} == {
        "test_first": "leaked",
        "test_last": "leaked",
    }


def test_who_ends_a_fixture_is_told_of_the_processes_in_it(run: Runner) -> None:
    found = run("""
    import subprocess, sys
    import pytest

    @pytest.fixture(scope="module")
    def helpers():
        started = []
        yield started
        for process in started:
            process.communicate()

    def test_last(helpers):
        helpers.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
    """)
    assert found.verdicts == {"test_last": "leaked"}
    assert found.finding("test_last")["kind"] == "process"


def test_what_a_wider_fixture_lets_go_at_its_end_is_clean(run: Runner) -> None:
    """The re-run that sets the fixture up again fills what the first user had filled; the last one had left nothing."""
    found = run("""
    import pytest
    SEEN = []

    @pytest.fixture(scope="module")
    def pool():
        return {}

    def test_first(pool):
        pool.setdefault("buffer", Buffer(2**21))

    def test_last(pool):
        pool.setdefault("buffer", Buffer(2**21))
        SEEN[:] = [Buffer(8)]
    """)
    assert found.verdicts == {"test_first": "noted", "test_last": "noted"}
    (slot,) = found.tests["test_last"]["findings"]
    assert slot["holder"]["root"].endswith(".SEEN")


def test_what_goes_with_wider_fixtures_fails_by_no_size(run: Runner) -> None:
    found = run("""
    import subprocess, sys
    import pytest
    SLOT = {}

    class TestIt:
        @classmethod
        def teardown_class(cls):
            cls.last = None

        def test_of_class(self):
            type(self).last = Buffer(2**21)

    @pytest.fixture(scope="class")
    def cleared():
        yield
        SLOT.clear()

    class TestOther:
        def test_of_fixture(self, cleared):
            SLOT["last"] = Buffer(2**21)

    @pytest.fixture(scope="class")
    def helpers():
        started = []
        yield started
        for process in started:
            process.communicate()

    class TestHelpers:
        def test_of_helper(self, helpers):
            assert not helpers, "it cannot run twice with one"
            helpers.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
    """)
    assert found.verdicts == {
        "TestIt::test_of_class": "noted",
        "TestOther::test_of_fixture": "noted",
        "TestHelpers::test_of_helper": "clean",
    }


def test_what_a_fixtures_teardown_makes_garbage_is_no_cycle_of_its_last_test(run: Runner) -> None:
    found = run(
        """
        import types
        import pytest

        @pytest.fixture(scope="module")
        def data():
            return types.SimpleNamespace(trainer=None)

        @pytest.mark.parametrize("i", range(2))
        def test_fits(data, i):
            data.trainer = types.SimpleNamespace(data=data, model=Buffer(16))

        def test_fits_last(data):
            data.trainer = types.SimpleNamespace(data=data, model=Buffer(16))
        """,
        "--gpu-leak-cycles=fail",
    )
    found.result.assert_outcomes(passed=3)
    assert set(found.verdicts.values()) == {"noted"}
    assert {one["kind"] for test in found.tests.values() for one in test["findings"]} == {"retained"}


def test_what_re_runs_have_put_into_fixtures_excuses_no_later_test(run: Runner, pytester: pytest.Pytester) -> None:
    """Garbage of a fixture that a re-run had set up was credited to the test in which it was collected."""
    pytester.makepyfile(
        test_after="""
        import gc
        from tests.support.standin import Buffer
        KEPT = []

        def test_retains():
            gc.collect()
            KEPT or KEPT.append(Buffer(2**21))
        """
    )
    found = run(
        """
        import types
        import pytest

        @pytest.fixture(scope="module")
        def data():
            return types.SimpleNamespace(trainer=None)

        def test_fits(data):
            data.trainer = types.SimpleNamespace(data=data, model=Buffer(2**21))
        """,
        "test_it.py",
        "test_after.py",
    )
    assert found.verdicts == {"test_fits": "noted", "test_retains": "leaked"}


def test_where_no_second_run_in_a_fixture_passes_the_first_is_judged(run: Runner) -> None:
    found = run("""
    import pytest

    @pytest.fixture(scope="module")
    def log():
        return []

    def test_last(log):
        assert not log
        log.append(Buffer(2**21))
    """)
    assert found.verdicts == {"test_last": "clean"}


def test_what_pytest_has_set_up_for_a_re_run_is_torn_down_where_no_fixture_is(
    run: Runner, pytester: pytest.Pytester
) -> None:
    """The next test failed: "previous item was not torn down properly". `used` ends with a test that did not use it."""
    pytester.makepyfile(test_after="def test_after(): pass")
    found = run(
        """
        import types
        import pytest

        @pytest.fixture(scope="session")
        def lasting():
            return []

        @pytest.fixture(scope="module")
        def used(lasting):
            return types.SimpleNamespace(last=None, lasting=lasting)

        def test_slot(used):
            used.last = Buffer(16)

        def test_last(lasting):
            lasting.append(Buffer(16))
        """,
        "test_it.py",
        "test_after.py",
    )
    found.result.assert_outcomes(passed=3)
    assert found.verdicts == {"test_slot": "noted", "test_last": "leaked", "test_after": "clean"}


@pytest.mark.interpreter
@pytest.mark.parametrize("after", ["", "def test_after(self): pass"])
def test_what_becomes_garbage_as_its_fixture_ends_is_no_cycle_of_the_tests(run: Runner, after: str) -> None:
    found = run(
        f"""
        import types
        import pytest

        @pytest.fixture(scope="class")
        def trainer():
            made = types.SimpleNamespace(last=None)
            made.itself = made
            return made

        class TestHeld:
            def test_held(self, trainer):
                trainer.last = Buffer(16)
            {after}

        class TestRing:
            def test_ring(self, trainer):
                ring = [Buffer(16)]
                ring.append(ring)
                trainer.last = Buffer(16)
            {after}
        """,
        "--gpu-leak-cycles=fail",
    )
    assert found.verdicts["TestHeld::test_held"] == "noted"
    assert found.verdicts["TestRing::test_ring"] == "leaked"
    (ring,) = [one for one in found.tests["TestRing::test_ring"]["findings"] if one["failed"]]
    assert (ring["kind"], ring["count"]) == ("cycle", 1)
