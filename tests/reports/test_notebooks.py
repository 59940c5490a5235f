"""What a notebook shows of findings and holders, whatever they are called."""

from __future__ import annotations

import html
from html.parser import HTMLParser
from typing import Any

import pytest

from pytest_gpuleak.results import Holders, Leaks
from tests.support.hostile import TEXTS, hostile_finding


class Shown(HTMLParser):
    """The tags, attributes and text of a piece of HTML."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.names: set[str] = set()
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.names.update(name for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_no_name_becomes_markup_or_breaks_a_line(make: Any, text: str) -> None:
    found = hostile_finding(make, text)
    assert found.holder is not None
    leaks = Leaks([found])
    leaks.why_unchecked = None
    for shown, plain in ((leaks, str(leaks)), (held := Holders([found.holder, found.holder], None), str(held))):
        page = Shown(shown._repr_html_())
        assert page.tags == {"pre", "span"}
        assert page.names == {"style"}
        assert page.text == plain
        assert all(line.isprintable() for line in page.text.split("\n"))


def test_a_block_that_was_not_judged_says_so(make: Any) -> None:
    leaks = Leaks([make.finding()])
    leaks.why_unchecked = "the block raised <ValueError>"
    assert leaks._repr_html_() == f"<pre>not judged: {html.escape('the block raised <ValueError>')}</pre>"


def test_a_finding_that_cannot_be_rendered_costs_its_own_line(make: Any) -> None:
    leaks = Leaks([make.finding(bytes="<many>"), make.finding()])
    leaks.why_unchecked = None
    shown = leaks._repr_html_()
    assert "could not be shown" in shown
    assert "app.metrics.HISTORY" in shown
