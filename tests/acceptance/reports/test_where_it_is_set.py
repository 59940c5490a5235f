"""`<- cut here, at FILE:LINE` names the line that sets the attribute, wherever that stands, or none."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

    from tests.conftest import Run, Runner

LIBRARY = """
    class Base:
        def __init__(self):
            self.kept = None

        def put(self, value):
            self.kept = value  # by the base

        def chain(self, value):
            self.links = (value, getattr(self, "links", None))  # a tuple

    class App(Base):
        '''No line here sets anything.'''

    class Meter:
        total = None

    APP, METER = App(), Meter()

    def update(meter, value):
        meter.total = value  # from outside
"""


def marked(found: Run, test: str, pytester: pytest.Pytester) -> str:
    """The source line that the finding marks; empty where it marks none."""
    edit = found.finding(test)["edit"]
    if edit is None:
        return ""
    lines = (pytester.path / edit["file"]).read_text().splitlines()
    assert edit["code"] == lines[edit["line"] - 1].strip()
    return str(edit["code"])


SET = {
    "by_a_method": ("APP.put(Buffer(2**21))", "self.kept = value  # by the base"),
    "from_outside": ("app.update(METER, Buffer(2**21))", "meter.total = value  # from outside"),
    "here": ("METER.peak = Buffer(2**21)", "METER.peak = Buffer(2**21)"),
    "by_setattr": ("setattr(METER, 'low', Buffer(2**21))", ""),
    "and_emptied": (
        "METER.top = Buffer(2**21)\n\ndef test_empties():\n    METER.top = None",
        "METER.top = Buffer(2**21)",
    ),
    "in_two_places": ("METER.high = Buffer(2**21)\n\ndef test_other():\n    METER.high = 5", ""),
}


def test_the_line_that_sets_an_attribute_is_marked(run: Runner, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(app=textwrap.dedent(LIBRARY))
    tests = (f"\n\ndef test_{name}():\n    {body}" for name, (body, _) in SET.items())
    found = run(f"import app\nfrom app import APP, METER{''.join(tests)}\n")
    shown = {name: marked(found, f"test_{name}", pytester) for name in SET}
    assert shown == {name: line for name, (_, line) in SET.items()}


def test_a_chain_of_tuples_is_named_with_the_line_that_makes_it_longer(run: Runner, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(app=textwrap.dedent(LIBRARY))
    found = run("from app import APP\n\ndef test_it():\n    APP.chain(Buffer(100))\n")
    finding = found.finding("test_it")
    assert (finding["kind"], finding["code"]) == ("growing", "GL706")
    assert finding["hint"].startswith(
        "Each run puts the tuple in `app.APP.links` into a new one, which keeps it by `[1]`:"
    )
    assert marked(found, "test_it", pytester) == 'self.links = (value, getattr(self, "links", None))  # a tuple'
