"""What the test's runner alone holds is decided at a glance, without a re-run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Runner

pytestmark = pytest.mark.newest

HOLDS_THE_INSTANCE = """
import pytest

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    from _pytest.runner import runtestprotocol
    instance = item.instance  # as pytest-flaky's frame does
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    runtestprotocol(item, nextitem=nextitem)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True
"""

COUNTED = """
    import json, pathlib, unittest
    KEPT, RUNS = [], {}

    def note(name):
        RUNS[name] = RUNS.get(name, 0) + 1
        pathlib.Path("runs.json").write_text(json.dumps(RUNS))
"""


frames_alone = pytest.mark.skipif(
    pytest.version_tuple < (8,),
    reason="the class's fixture keeps a TestCase's instance too, in its finalizers: it is really left",
)


def runs(pytester: pytest.Pytester) -> dict[str, int]:
    """How often each test's body ran."""
    found = json.loads((pytester.path / "runs.json").read_text())
    assert isinstance(found, dict)
    return found


@pytest.fixture
def holding(run: Runner, pytester: pytest.Pytester) -> None:
    """A frame holds each test's instance until the test's report is made."""
    conftest = pytester.path / "conftest.py"
    conftest.write_text(conftest.read_text() + HOLDS_THE_INSTANCE)


@pytest.mark.interpreter
@frames_alone
@pytest.mark.usefixtures("holding")
def test_what_a_frame_of_a_plugin_holds_is_clean_without_a_re_run(run: Runner, pytester: pytest.Pytester) -> None:
    found = run(
        f"""{COUNTED}
    class TestCase(unittest.TestCase):
        def setUp(self):
            self.batch = [Buffer(2**22)]

        def test_attribute(self):
            note("attribute")
            self.value = Buffer(2**22)

        def test_nested(self):
            note("nested")
            self.model = {{"layers": [Buffer(), Buffer()]}}

        def test_ring(self):
            note("ring")
            self.me, self.value = self, Buffer()

        def test_subtests(self):
            note("subtests")
            for i in range(2):
                with self.subTest(i=i):
                    self.value = Buffer()
    """,
        apart=True,
    )
    found.result.assert_outcomes(passed=4)
    assert set(found.verdicts.values()) == {"clean"}
    assert runs(pytester) == {"attribute": 1, "nested": 1, "ring": 1, "subtests": 1}


@pytest.mark.usefixtures("holding")
def test_what_something_else_holds_too_is_a_leak(run: Runner, pytester: pytest.Pytester) -> None:
    keeping = {
        "Instance": "KEPT.append(self)",
        "Value": "KEPT.append(self.value)",
        "Dict": "KEPT.append(self.__dict__)",
        "Closure": "KEPT.append(lambda: self)",
        "Method": "KEPT.append(self.test_it)",
        "Box": "self.box = [self.value]; KEPT.append(self.box)",
        "Class": "type(self).last = [*getattr(type(self), 'last', ()), self.value]",
    }
    cases = {
        f"{name}{base.rpartition('.')[2]}": (base, keep)
        for base in ("unittest.TestCase", "object")
        for name, keep in keeping.items()
    }
    found = run(
        COUNTED
        + "".join(
            f"""
    KEPT_{name} = []

    class Test{name}({base}):
        def test_it(self):
            note("{name}")
            self.value = Buffer(100)
            {keep.replace("KEPT", f"KEPT_{name}")}
    """
            for name, (base, keep) in cases.items()
        )
    )
    assert found.verdicts == dict.fromkeys((f"Test{name}::test_it" for name in cases), "leaked")
    assert runs(pytester) == dict.fromkeys(cases, 3)  # once more for its line


@pytest.mark.interpreter
def test_what_the_instance_of_a_class_keeps_is_a_note_without_a_re_run(run: Runner, pytester: pytest.Pytester) -> None:
    found = run(
        f"""{COUNTED}
    class TestIt:
        def setup_method(self):
            self.batch = Buffer(100)

        def test_attribute(self):
            note("attribute")

        def test_other(self):
            note("other")
            self.batch = {{"x": [Buffer(7)]}}
    """
    )
    assert found.verdicts == {"TestIt::test_attribute": "noted", "TestIt::test_other": "noted"}
    assert runs(pytester) == {"attribute": 1, "other": 1}
    finding = found.finding("TestIt::test_attribute")
    assert (finding["kind"], finding["failed"], finding["bytes"]) == ("retained", False, 100)
    assert found.holder("TestIt::test_attribute") == "TestIt instance kept by pytest.batch"
    assert found.holder("TestIt::test_other") == "TestIt instance kept by pytest.batch['x'][0]"
    assert "delete the attribute in teardown_method" in finding["hint"]


@pytest.mark.skipif(
    pytest.version_tuple < (8, 2), reason="the item has the class's function, not the instance's method"
)
def test_what_an_instance_keeps_that_wraps_its_method_is_a_note_without_a_re_run(
    run: Runner, pytester: pytest.Pytester
) -> None:
    found = run(
        f"""{COUNTED}
    import functools, types

    class Wrapping(unittest.TestCase):
        def __init__(self, name="runTest"):
            super().__init__(name)
            method = getattr(self, name, None)
            if method is not None:
                @functools.wraps(method)
                def wrapper(self):
                    method()

                setattr(self, name, types.MethodType(wrapper, self))  # as in torch.testing._internal.common_utils

    class TestIt(Wrapping):
        def setUp(self):
            self.batch = Buffer(100)

        def test_it(self):
            note("it")

        def test_listed(self):
            note("listed")
            KEPT.append(self)
    """
    )
    assert found.verdicts == {"TestIt::test_it": "noted", "TestIt::test_listed": "leaked"}
    assert runs(pytester) == {"it": 1, "listed": 3}
    assert found.holder("TestIt::test_it") == "TestIt instance kept by pytest.batch"
    assert "`tearDown` of a TestCase" in found.finding("TestIt::test_it")["hint"]


def test_as_much_as_fails_is_confirmed_by_a_re_run(run: Runner, pytester: pytest.Pytester) -> None:
    found = run(
        f"""{COUNTED}
    class TestIt:
        def test_it(self):
            note("it")
            self.value = Buffer(2**21)
    """
    )
    assert found.verdicts == {"TestIt::test_it": "leaked"}
    assert runs(pytester) == {"it": 3}  # once more for its line
    assert found.finding("TestIt::test_it")["kind"] == "retained"


@frames_alone
@pytest.mark.usefixtures("holding")
def test_counters_are_judged_without_what_the_runner_holds(run: Runner) -> None:
    found = run(
        f"""{COUNTED}
    class TestIt(unittest.TestCase):
        def test_it(self):
            self.value = Buffer(2**22)

        def test_next(self):
            pass
    """,
        "--gpu-leak-host=heap",
    )
    assert found.verdicts == {"TestIt::test_it": "clean", "TestIt::test_next": "clean"}


def test_pytest_flaky_makes_no_suspects(run: Runner, pytester: pytest.Pytester) -> None:
    pytest.importorskip("flaky")
    found = run(
        f"""{COUNTED}
    class TestIt(unittest.TestCase):
        def test_it(self):
            note("it")
            self.value = Buffer(2**22)
    """,
        "-p",
        "flaky.flaky_pytest_plugin",
        apart=True,
    )
    assert found.verdicts == {"TestIt::test_it": "clean"}
    assert runs(pytester) == {"it": 1}


@pytest.mark.torch
def test_a_view_of_something_older_is_no_memory_of_its_own(run: Runner) -> None:
    pytest.importorskip("torch")
    found = run(
        """
        import torch
        WEIGHT = torch.ones(1024, 1024)

        class TestIt:
            def test_it(self):
                self.view = WEIGHT[:2]
        """
    )
    assert found.finding("TestIt::test_it")["bytes"] == 0


@pytest.mark.torch
@pytest.mark.usefixtures("holding")
def test_a_model_and_its_loss_on_the_instance(run: Runner, pytester: pytest.Pytester) -> None:
    pytest.importorskip("torch")
    found = run(
        f"""{COUNTED}
    import torch

    class TestIt(unittest.TestCase):
        def setUp(self):
            self.model = torch.nn.Linear(4, 4)

        def test_loss(self):
            note("loss")
            self.loss = self.model(torch.ones(8, 4)).sum()
            self.loss.backward()

        def test_graph_kept(self):
            note("graph")
            self.loss = self.model(torch.ones(8, 4)).sum()
            KEPT.append(self.loss * 2)
    """,
    )
    assert found.verdicts == {"TestIt::test_loss": "clean", "TestIt::test_graph_kept": "leaked"}
    assert runs(pytester) == {"loss": 1, "graph": 3}


@frames_alone
@pytest.mark.usefixtures("holding")
def test_a_large_structure_on_the_instance(run: Runner, pytester: pytest.Pytester) -> None:
    """Beyond 300 objects each test of opacus with a model of torchvision was run again and searched for: 1.4 s each."""
    found = run(
        f"""{COUNTED}
    class Layer:
        def __init__(self, below):
            self.parts = {{"weight": Buffer(2**14), "below": below}}

    class TestIt(unittest.TestCase):
        def hold(self, count):
            self.layers = [Layer(None) for _ in range(count)]

        def test_alone(self):
            note("alone")
            self.hold(400)

        def test_one_of_few_is_kept(self):
            self.hold(10)
            KEPT.append(self.layers[5])

        def test_one_of_many_is_kept(self):
            self.hold(400)
            KEPT.append(self.layers[200])

        def test_the_heap_is_collected_meanwhile(self):
            self.hold(400)
            __import__("gc").collect()
            KEPT.append(self.layers[200])
    """,
    )
    kept = tuple(
        f"TestIt::test_{name}"
        for name in ("one_of_few_is_kept", "one_of_many_is_kept", "the_heap_is_collected_meanwhile")
    )
    assert found.verdicts == {"TestIt::test_alone": "clean", **dict.fromkeys(kept, "leaked")}
    assert runs(pytester)["alone"] == 1
    for name in kept:
        assert {one["holder"]["root"] for one in found.tests[name]["findings"]} == {"test_it.KEPT"}


@frames_alone
@pytest.mark.usefixtures("holding")
def test_what_the_runner_holds_beside_a_suspect(run: Runner, pytester: pytest.Pytester) -> None:
    """A fixture of opacus's gives each test another DataLoader in a dict of the session: all tests were searched for."""
    found = run(
        f"""{COUNTED}
    import pytest

    STORE, LEAK = {{}}, []

    @pytest.fixture(autouse=True)
    def loader():
        STORE["loader"] = Buffer(100)

    class TestIt(unittest.TestCase):
        def setUp(self):
            self.layers = [Buffer(2**15) for _ in range(400)]

        def test_it(self):
            note("it")

        def test_shared(self):
            STORE["loader"].layers = self.layers

        def test_leak(self):
            LEAK.append(self.layers[7])
    """,
    )
    assert found.verdicts == {
        "TestIt::test_it": "noted",
        "TestIt::test_shared": "leaked",
        "TestIt::test_leak": "leaked",
    }
    assert runs(pytester) == {"it": 1}  # the setup of the second run frees what was left
    (finding,) = found.tests["TestIt::test_it"]["findings"]
    assert (finding["count"], finding["bytes"]) == (1, 100)
    (finding,) = (one for one in found.tests["TestIt::test_leak"]["findings"] if one["failed"])
    assert (finding["kind"], finding["count"], finding["bytes"]) == ("growing", 1, 2**15)
