"""One kind of test whose verdict is known: a template of a test module's part, and how it is filled."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import string
from typing import Final, Literal

STANDARD: Final = """\
import asyncio, atexit, collections, contextvars, functools, gc, itertools, logging, queue, threading, time, types, unittest, weakref
import pytest
"""
HELPERS: Final = """
STATE, STORE = {}, []


class Box:
    def __init__(self, name):
        self.name, self.kept = name, []

    def __repr__(self):
        return self.name


class Node:
    def __init__(self, **values):
        self.__dict__.update(values)


def cycle(array):
    node = Node(array=array)
    node.me = node
    return node


@pytest.fixture
def store():
    STORE.clear()
    return STORE
"""
HEAD: Final = f"{STANDARD}import numpy as np\nimport torch\n{HELPERS}"
"""What each module of tests begins with: imports, and what parts of it share."""

Expected = Literal["growing", "retained", "fails", "noted", "passes"]
WORDS: Final[dict[Expected, str]] = {
    "growing": "leaks",
    "retained": "retained",
    "noted": "noted",
    "fails": "fails",
    "passes": "",
}
"""The part of a test's name that says its verdict."""
EDIT: Final = re.compile(r"  # edit$", re.MULTILINE)
"""Marks a line that the report may name as the one to edit."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """Tests whose verdict is known.

    A test's name says its verdict: it has a part ``leaks`` (growing, fails), ``retained`` (does not grow, fails by its size),
    ``fails`` (one or the other), ``noted`` (passes, with a note in the report) or none of these (passes). A wider fixture that
    fails has ``leaks`` in its name.

    Attributes:
        name: unique.
        why: why this is the law's verdict.
        source: a `string.Template`. ``$n`` is the number of this part, unique in a suite; ``$array`` makes an array;
            ``$pause`` is a statement that takes time; ``$many`` and ``$each`` stand where the test may be parametrized.
        conftest: a template of a part of the conftest.py.
        needs: a module without which the tests cannot run; empty: none.
        file: whether the source is a file of its own, as a user writes it: no template. `EDIT` marks lines.
        first: the verdict of the file's first test, which is added to its name; the other names say their own.
        code: one that a finding of the file has. In a file that passes no finding has it.
        hint: how a finding's hint starts, ``$m`` being the file's module, and what it names as the remedy.
        apart: names the process of its own in which it must run, with others of that name: it changes much for others.
        parts: what a source of one test without fixtures declares, and the statements of the test: they can be crossed with
            those of others. Empty: there are none.
        ordered: whether the verdicts hold in the source's order alone: what a test leaves is charged to the first that does.
    """

    name: str
    why: str
    source: str
    conftest: str = ""
    needs: str = ""
    file: bool = False
    first: Expected = "passes"
    code: str = ""
    hint: tuple[str, str] = ("", "")
    apart: str = ""
    parts: tuple[str, str] = ("", "")
    ordered: bool = False

    @property
    def leaks(self) -> bool:
        """Tell whether a test or a fixture of this kind fails."""
        failing = [word for expected, word in WORDS.items() if expected not in ("noted", "passes")]
        return WORDS[self.first] in failing or any(word in self.source for word in failing)

    @property
    def available(self) -> bool:
        """Tell whether what the tests need is installed."""
        return not self.needs or importlib.util.find_spec(self.needs) is not None

    def fill(self, number: int, array: str = "torch.ones(100)", pause: float = 0.0, count: int = 1) -> str:
        """Return the source of a part of a test module, or of a file of its own.

        Args:
            number: of the part, unique in the suite.
            array: the expression that makes an array.
            pause: seconds that a test takes beside its work.
            count: into how many tests a test is parametrized, where its kind allows that.
        """
        if self.file:
            named, word = f"def test_{number}_", WORDS[self.first]
            source = EDIT.sub("", self.source).replace("def test_", named)
            return source.replace(named, f"{named}{word}_", 1) if word else source
        many = f"@pytest.mark.parametrize('i', range({count}))\n" if count > 1 else ""
        return string.Template(self.source).substitute(
            n=number, array=array, pause=f"time.sleep({pause})", many=many, each="i, " if count > 1 else ""
        )

    def fill_conftest(self, number: int) -> str:
        """Return the source of this kind's part of the conftest.py."""
        return string.Template(self.conftest).substitute(n=number)


def simple(name: str, declared: str, body: str, expected: Expected, why: str, arguments: str = "") -> Kind:
    """Make a kind of one test function, which may be parametrized.

    Args:
        name: of the kind.
        declared: globals; ``G$n`` is a name of its own.
        body: statements of the test, each on a line of its own or behind a semicolon.
        expected: the verdict.
        why: why.
        arguments: fixtures that the test asks for.
    """
    word = WORDS[expected]
    lines = "".join(f"    {line}\n" for line in ("$pause", *body.splitlines()))
    many, each = ("", "") if expected in ("retained", "fails", "noted") else ("${many}", "${each}")
    source = f"{declared}\n\n{many}def test_${{n}}{word and '_' + word}({each}{arguments}):\n{lines}"
    return Kind(name, why, source, parts=("", "") if arguments else (declared, body))


def leak(name: str, declared: str, body: str, why: str, arguments: str = "") -> Kind:
    """Make a kind whose test leaks. Arguments as for `simple`."""
    return simple(name, declared, body, "growing", why, arguments)


def clean(name: str, declared: str, body: str, why: str, arguments: str = "") -> Kind:
    """Make a kind whose test passes. Arguments as for `simple`."""
    return simple(name, declared, body, "passes", why, arguments)
