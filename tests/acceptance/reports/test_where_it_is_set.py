"""`<- cut here, at FILE:LINE` names the line that sets the attribute, wherever that stands, or none."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
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


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("APP.put(Buffer(2**21))", "self.kept = value  # by the base"),
        ("app.update(METER, Buffer(2**21))", "meter.total = value  # from outside"),
        ("METER.peak = Buffer(2**21)", "METER.peak = Buffer(2**21)"),
        ("setattr(METER, 'low', Buffer(2**21))", ""),
        ("METER.top = Buffer(2**21)\n\n    def test_other():\n        METER.top = None", "METER.top = Buffer(2**21)"),
        ("METER.high = Buffer(2**21)\n\n    def test_other():\n        METER.high = 5", ""),
    ],
)
def test_the_line_that_sets_an_attribute_is_marked(
    run: Runner, pytester: pytest.Pytester, body: str, line: str
) -> None:
    pytester.makepyfile(app=textwrap.dedent(LIBRARY))
    found = run(
        f"import app\n    from app import APP, METER\n\n    def test_it():\n        {body}\n".replace("\n    ", "\n")
    )
    assert marked(found, "test_it", pytester) == line


def test_a_chain_of_tuples_is_named_with_the_line_that_makes_it_longer(run: Runner, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(app=textwrap.dedent(LIBRARY))
    found = run("from app import APP\n\ndef test_it():\n    APP.chain(Buffer(100))\n")
    finding = found.finding("test_it")
    assert (finding["kind"], finding["code"]) == ("growing", "GL706")
    assert finding["hint"].startswith(
        "Each run puts the tuple in `app.APP.links` into a new one, which keeps it by `[1]`:"
    )
    assert marked(found, "test_it", pytester) == 'self.links = (value, getattr(self, "links", None))  # a tuple'
