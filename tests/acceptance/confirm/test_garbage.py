"""Arrays in cycles are decided on by a young collection alone, and what stays beside them is checked as before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Runner

pytestmark = pytest.mark.interpreter

CYCLE = """
    import sys

    class Node:
        pass

    def make_cycle(size):
        node = Node()
        node.itself, node.buffer = node, Buffer(size)
"""


@pytest.mark.usefixtures("cold")
def test_a_cycle_is_a_note_that_needs_no_check_of_suspects(run: Runner) -> None:
    found = run(
        CYCLE
        + """
    def test_it():
        make_cycle(300)
        make_cycle(200)

    def test_what_the_plugin_has_loaded():
        assert "pytest_gpuleak.engine.garbage_check" in sys.modules
        assert "pytest_gpuleak.engine.suspect" not in sys.modules
    """,
        apart=True,
    )
    assert found.verdicts == {"test_it": "noted", "test_what_the_plugin_has_loaded": "clean"}
    cycle = found.finding("test_it")
    assert (cycle["kind"], cycle["count"], cycle["bytes"]) == ("cycle", 2, 500)
    assert cycle["holder"]["text"] == "test_it.Node.itself"
    assert found.tests["test_it"]["suspect_s"]["check"] > 0
    assert found.report["summary"]["suspects"]["tests"] == 1


def test_what_stays_beside_a_cycle_is_found_and_the_cycle_too(run: Runner) -> None:
    found = run(
        CYCLE
        + """
    HISTORY = []

    def test_it():
        make_cycle(300)
        HISTORY.append(Buffer(100))
    """
    )
    assert found.verdicts == {"test_it": "leaked"}
    growing, cycle = found.tests["test_it"]["findings"]
    assert (growing["kind"], growing["bytes"], growing["holder"]["text"]) == ("growing", 100, "test_it.HISTORY[0]")
    assert (cycle["kind"], cycle["count"], cycle["bytes"]) == ("cycle", 1, 300)


def test_an_array_that_a_finalizer_saves_is_no_garbage(run: Runner) -> None:
    """The collection runs user code, and what that keeps stays: the re-run finds one more."""
    found = run(
        """
        SAVED = []

        class Node:
            def __del__(self):
                SAVED.append(self.buffer)

        def test_it():
            node = Node()
            node.itself, node.buffer = node, Buffer(100)
        """
    )
    assert found.verdicts == {"test_it": "leaked"}
    assert (found.finding("test_it")["kind"], found.holder("test_it")) == ("growing", "test_it.SAVED[0]")
