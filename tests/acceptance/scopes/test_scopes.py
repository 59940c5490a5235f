"""Whose memory it is: the test's, or that of a fixture wider than it."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Runner


SCOPES = ["class", "module", "package", "session"]


@pytest.mark.newest
@pytest.mark.parametrize("mode", ["epoch", "scan"])
def test_wider_fixtures_are_not_the_tests(run: Runner, mode: str) -> None:
    found = run(
        "import pytest\n"
        + "".join(
            f"""
@pytest.fixture(scope="{scope}")
def model_of_{scope}():
    yield [Buffer(2**21)]

@pytest.fixture(scope="{scope}")
def late_of_{scope}(model_of_{scope}):
    return Buffer(2**21)

class TestOf{scope}:
    def test_one(self, model_of_{scope}):
        assert model_of_{scope}

    def test_two(self, request):
        assert request.getfixturevalue("late_of_{scope}")

    def test_three(self, model_of_{scope}, late_of_{scope}):
        pass
"""
            for scope in SCOPES
        ),
        f"--gpu-leak-scan={mode}",
        apart=True,
    )
    found.result.assert_outcomes(passed=12)
    assert set(found.verdicts.values()) == {"clean"}
    assert found.report["fixtures"] == []
    assert found.result.ret == 0


@pytest.mark.newest
def test_fixtures_that_do_not_let_go(run: Runner) -> None:
    source = "import pytest\nREGISTRY = {}\n" + "".join(
        f"""
@pytest.fixture(scope="{scope}")
def model_of_{scope}():
    REGISTRY["{scope}"] = Buffer(2**21)
    yield REGISTRY["{scope}"]

class TestOf{scope}:
    def test_one(self, model_of_{scope}):
        pass

    def test_two(self, model_of_{scope}):
        pass
"""
        for scope in SCOPES
    )
    found = run(source)
    assert set(found.verdicts.values()) == {"clean"}
    for scope in SCOPES:
        record = found.fixtures[f"model_of_{scope}"]
        (finding,) = record["findings"]
        assert (record["scope"], finding["kind"], finding["failed"]) == (scope, "retained", True)
        assert (finding["bytes"], finding["holder"]["text"]) == (2**21, f"test_it.REGISTRY['{scope}']")
        # The runner puts one line before the source.
        assert (record["file"], record["line"] - 2) == (
            "test_it.py",
            source.splitlines().index(f'@pytest.fixture(scope="{scope}")'),
        )
        found.result.stdout.fnmatch_lines([f"*LEAKED fixture*model_of_{scope}*"])
    assert found.result.ret == 1
    found.result.assert_outcomes(passed=8)
    found.result.stdout.fnmatch_lines(["*4 fixtures leaked*"])


MODULES = {
    "small": """
        @pytest.fixture(scope="module")
        def small():
            KEPT.append(Buffer(100))

        def test_small(small):
            pass
        """,
    "params": """
        SLOT = {}

        @pytest.fixture(scope="module", params=[1, 2, 3])
        def replaced(request):
            SLOT["x"] = Buffer(2**20 * request.param)
            yield SLOT["x"]

        def test_params(replaced):
            pass
        """,
    "store": """
        @pytest.fixture(scope="module")
        def store():
            return {"own": Buffer(10)}

        def test_adds(store):
            store["big"] = Buffer(2**21)

        def test_reads(store):
            assert store["big"]
        """,
    "dies": """
        @pytest.fixture(scope="module")
        def dies():
            return {}

        def test_adds_last(dies):
            dies["big"] = Buffer(2**21)
        """,
    "last": """
        @pytest.fixture(scope="module")
        def model():
            yield Buffer(2**21)

        def test_first(model):
            pass

        def test_last(model):
            KEPT.append(Buffer(100))
        """,
    "teardown": """
        @pytest.fixture(scope="module")
        def saved():
            yield Buffer(10)
            KEPT.append(Buffer(2**21))

        def test_saved(saved):
            pass
        """,
    "fails": """
        @pytest.fixture(scope="module")
        def innocent():
            yield Buffer(2**21)

        def test_fails(innocent):
            assert not innocent
        """,
    "hidden": """
        @pytest.fixture(scope="class")
        def guilty():
            KEPT.append(Buffer(2**21))
            yield KEPT[-1]

        class TestIt:
            def test_fails(self, guilty):
                assert not guilty

        def test_after_failure():
            pass
        """,
    "plain": """
        def setup_module():
            KEPT.append(Buffer(2**21))

        class TestModel:
            @classmethod
            def setup_class(cls):
                KEPT.append(Buffer(2**21))

            def test_it(self):
                pass
        """,
    "unittest": """
        def setUpModule():
            KEPT.append(Buffer(2**21))

        class TestCase(unittest.TestCase):
            @classmethod
            def setUpClass(cls):
                KEPT.append(Buffer(2**21))

            def test_it(self):
                pass
        """,
}


def test_what_is_the_tests_and_what_the_fixtures(run: Runner, pytester: pytest.Pytester) -> None:
    head = "import unittest\nimport pytest\nfrom tests.support.standin import Buffer\nKEPT = []\n"
    pytester.makepyfile(**{f"test_{name}": head + textwrap.dedent(source) for name, source in MODULES.items()})
    found = run("")
    unchecked = ("test_fails", "TestIt::test_fails")
    assert found.verdicts == {
        **dict.fromkeys(found.tests, "clean"),
        **dict.fromkeys(unchecked, "unchecked"),
        "test_adds": "noted",
        "test_adds_last": "noted",
        "test_last": "leaked",
    }
    found.result.assert_outcomes(failed=2, passed=len(found.report["tests"]) - 2)
    assert found.finding("test_last")["kind"] == "growing"
    note = found.finding("test_adds")
    assert (note["kind"], note["holder"]["kind"]) == ("retained", "fixture")
    assert note["until_teardown"]
    assert "store" in note["holder"]["text"]
    found.result.stdout.fnmatch_lines(["NOTED 2.0 MiB held by fixture 'store'?'big'? until its teardown"])
    told = [(name, one["kind"], one["failed"]) for name, record in found.fixtures.items() for one in record["findings"]]
    guilty = {"replaced", "saved", "guilty", "TestModel.setup_class", "TestCase.setUpClass"}
    guilty |= {"test_plain.setup_module", "test_unittest.setUpModule"}
    assert sorted(told) == sorted([("small", "retained", False), *((name, "retained", True) for name in guilty)])
    assert found.fixtures["saved"]["findings"][0]["bytes"] == 2**21
    for name in ("plain.setup_module", "unittest.setUpModule"):
        record = found.fixtures[f"test_{name}"]
        assert (record["scope"], record["file"]) == ("module", f"test_{name.partition('.')[0]}.py")


def test_xunit_style_setup_is_named_by_what_the_user_wrote(run: Runner, pytester: pytest.Pytester) -> None:
    found = run(
        """
        import unittest
        KEPT = []

        def teardown_module():
            KEPT.append(Buffer(2**21))

        class TestModel:
            def teardown_class(cls):
                KEPT.append(Buffer(2**21))

            def test_it(self):
                pass

        class TestCase(unittest.TestCase):
            @classmethod
            def tearDownClass(cls):
                KEPT.append(Buffer(2**21))

            def test_it(self):
                pass

        class TestChild(TestCase):
            pass
        """
    )
    source = (pytester.path / "test_it.py").read_text().split("\n")
    written = {name: source[record["line"] - 1].strip() for name, record in found.fixtures.items()}
    assert written == {
        "test_it.teardown_module": "def teardown_module():",
        "TestModel.teardown_class": "def teardown_class(cls):",
        "TestCase.tearDownClass": "@classmethod",
        "TestChild.tearDownClass": "@classmethod",
    }
    assert {record["file"] for record in found.fixtures.values()} == {"test_it.py"}


def test_a_fixture_that_leaves_more_each_time_grows(run: Runner) -> None:
    found = run(
        """
        import pytest
        KEPT = []

        @pytest.fixture(scope="class")
        def model():
            KEPT.append(Buffer(100))

        class TestOne:
            def test_it(self, model):
                pass

        class TestTwo:
            def test_it(self, model):
                pass
        """
    )
    (finding,) = found.fixtures["model"]["findings"]
    assert (finding["kind"], finding["failed"], finding["count"], finding["bytes"]) == ("growing", True, 1, 100)
    assert found.result.ret == 1


@pytest.mark.parametrize("last", ["suspect", "clean"])
def test_a_fixture_is_judged_by_its_own_setups(run: Runner, pytester: pytest.Pytester, last: str) -> None:
    """The re-run of a module's last test sets the module's fixtures up again. That it has one is no fact of theirs."""
    order = ["clean", "suspect"] if last == "suspect" else ["suspect", "clean"]
    bodies = {"suspect": "SLOT[0] = Buffer(10)", "clean": "pass"}
    with (pytester.path / "conftest.py").open("a") as conftest:
        conftest.write(
            "\ndef pytest_unconfigure():\n    import test_it\n"
            "    for helper in test_it.HELPERS:\n        helper.communicate()\n    test_it.HELPERS.clear()\n"
        )
    found = run(
        """
        import pytest, subprocess, sys
        KEPT, SLOT, HELPERS = [], [None], []

        @pytest.fixture(scope="module")
        def model():
            KEPT.append(Buffer(100))

        @pytest.fixture(scope="module")
        def server():
            HELPERS.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
        """
        + "".join(f"\n        def test_{name}(model, server):\n            {bodies[name]}\n" for name in order)
    )
    assert found.verdicts == {"test_suspect": "noted", "test_clean": "clean"}
    told = [(name, one["kind"], one["failed"]) for name in found.fixtures for one in found.fixtures[name]["findings"]]
    assert sorted(told) == [("model", "retained", False), ("server", "process", False)]


def test_the_garbage_of_a_failure_is_not_the_fixtures(run: Runner) -> None:
    scopes = ("class", "module", "session")
    source = """
import gc, pytest

gc.disable()  # garbage stays until the plugin asks for it
""" + "".join(
        f"""
@pytest.fixture(scope="{scope}")
def broken_of_{scope}():
    value = Buffer(2**21)
    try:
        raise RuntimeError("no model")
    except RuntimeError as error:
        kept = error  # a cycle: the error, its traceback, this frame
        raise

@pytest.fixture(scope="{scope}")
def model_of_{scope}():
    yield Buffer(2**21)

class TestOf{scope}:
    def test_broken(self, broken_of_{scope}):
        pass

    def test_failing(self, model_of_{scope}):
        try:
            assert not model_of_{scope}
        except AssertionError as error:
            kept = error
            raise

    def test_skipped(self, model_of_{scope}):
        pytest.skip(str(len(model_of_{scope}.__class__.__name__)))

    def test_passing(self, model_of_{scope}):
        pass

def test_next_of_{scope}():
    pass
"""
        for scope in scopes
    )
    found = run(source, "--gpu-leak-cycles=fail", apart=True)
    assert found.report["fixtures"] == []
    for scope in scopes:
        verdicts = (found.verdicts[f"TestOf{scope}::test_passing"], found.verdicts[f"test_next_of_{scope}"])
        assert verdicts == ("clean", "clean"), scope


@pytest.mark.parametrize("ending", ["pytest.skip()", "assert not model"])
def test_a_failure_does_not_hide_a_fixtures_own_garbage(run: Runner, ending: str) -> None:
    source = f"""
        import gc, pytest

        gc.disable()

        @pytest.fixture(scope="module")
        def model():
            kept = [Buffer(2**21)]
            kept.append(kept)
            yield kept

        def test_first(model):
            {ending}

        def test_next(model):
            pass
    """
    found = run(source, apart=True)
    assert found.fixtures["model"]["findings"][0]["kind"] == "cycle"


def test_what_goes_with_a_fixture_excuses_no_test(run: Runner) -> None:
    """The last test of a module was excused for all that the module's fixtures let go: a verdict by the order of tests."""
    found = run(
        """
        import pytest
        KEPT = {}

        class Node:
            pass

        @pytest.fixture(scope="module")
        def large():
            return [Buffer(2**22)]

        @pytest.fixture(scope="module")
        def cycle():
            node = Node()
            node.me, node.large = node, Buffer(2**22)
            yield node

        def test_puts_into_a_fixture(large):
            large[:] = [Buffer(2**23)]

        def test_replaces_what_an_earlier_one_put_there(large):
            large[:] = [Buffer(2**23)]

        def test_keeps(large):
            KEPT["a"] = Buffer(2**21)

        def test_keeps_and_is_the_last(large, cycle):
            KEPT["b"] = Buffer(2**21)
        """
    )
    assert found.verdicts == {
        "test_puts_into_a_fixture": "noted",
        "test_replaces_what_an_earlier_one_put_there": "noted",
        "test_keeps": "leaked",
        "test_keeps_and_is_the_last": "leaked",
    }


def test_setup_that_lets_go(run: Runner) -> None:
    found = run(
        """
        import unittest
        STATE = {}

        def setup_module():
            STATE["module"] = Buffer(2**21)

        def teardown_module():
            STATE.clear()

        def setup_function():
            STATE["function"] = Buffer(2**21)

        def teardown_function():
            del STATE["function"]

        class TestModel:
            def setup_class(cls):
                cls.model = Buffer(2**21)

            def teardown_class(cls):
                del cls.model

            def setup_method(self):
                STATE["method"] = Buffer(2**21)

            def teardown_method(self):
                del STATE["method"]

            def test_it(self):
                pass

        class TestCase(unittest.TestCase):
            @classmethod
            def setUpClass(cls):
                cls.model = Buffer(2**21)

            @classmethod
            def tearDownClass(cls):
                del cls.model

            def setUp(self):
                self.own = Buffer(2**21)
                STATE["x"] = Buffer(2**21)
                self.addCleanup(STATE.pop, "x")

            def tearDown(self):
                del self.own  # before 8.2 pytest keeps the instance until the class is done

            def test_it(self):
                assert self.own

            def test_again(self):
                assert self.model

        def test_it():
            pass
        """
    )
    assert set(found.verdicts.values()) == {"clean"}
    assert found.report["fixtures"] == []


def test_fixtures_finalised_at_the_end_of_the_session(run: Runner) -> None:
    """With -x the last fixtures are torn down outside any test."""
    found = run(
        """
        import pytest
        KEPT = []

        @pytest.fixture(scope="session")
        def model():
            KEPT.append(Buffer(2**21))

        def test_leaks(model):
            KEPT.append(Buffer(1))

        def test_never_run(model):
            pass
        """,
        "-x",
    )
    assert found.verdicts == {"test_leaks": "leaked"}
    assert found.fixtures["model"]["findings"][0]["failed"] is True


def test_order_does_not_change_a_growing_verdict(run: Runner, pytester: pytest.Pytester) -> None:
    for order in ("", "::-1"):
        conftest = pytester.path / "conftest.py"
        text = conftest.read_text().split("\ndef pytest_collection_modifyitems")[0]
        conftest.write_text(
            text + f"\ndef pytest_collection_modifyitems(items):\n    items[:] = items[::{order[2:] or 1}]\n"
        )
        found = run(
            """
            import pytest
            KEPT = []

            @pytest.fixture(scope="module")
            def shared():
                return Buffer(10)

            def test_a(shared):
                pass

            def test_b(shared):
                KEPT.append(Buffer(100))

            def test_c(shared):
                pass
            """
        )
        assert found.verdicts == {"test_a": "clean", "test_b": "leaked", "test_c": "clean"}
        assert found.finding("test_b")["kind"] == "growing"


def test_what_a_harness_frame_holds_is_not_left_behind(run: Runner, pytester: pytest.Pytester) -> None:
    """pytest-flaky keeps a TestCase's instance in a local variable of its hook until the test has been reported."""
    with (pytester.path / "conftest.py").open("a") as conftest:
        conftest.write(
            "\n\n@pytest.hookimpl(hookwrapper=True)\n"
            "def pytest_runtest_protocol(item):\n"
            "    import builtins\n"
            "    held = []\n"
            "    builtins.keep_in_a_frame = held.append\n"
            "    yield\n"
            "    assert held\n"
        )
    found = run(
        """
        import builtins

        def test_it():
            keep = vars(builtins).pop("keep_in_a_frame", [].append)
            keep(Buffer(2**21))

        def test_next():
            vars(builtins).pop("keep_in_a_frame")(1)
        """,
        apart=True,
    )
    assert found.verdicts == {"test_it": "clean", "test_next": "clean"}


def test_cycles_of_the_last_test_of_a_class_are_freed_young(run: Runner) -> None:
    found = run(
        """
        import pytest

        @pytest.fixture(scope="class")
        def shared():
            yield Buffer(10)

        class TestIt:
            def test_last(self, shared):
                loop = [Buffer(2**21)]
                loop.append(loop)
        """,
        apart=True,
    )
    finding = found.finding("TestIt::test_last")
    assert (finding["kind"], finding["count"]) == ("cycle", 1)
    assert found.report["fixtures"] == []
