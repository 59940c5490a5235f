"""Suites of tests whose verdicts are known: drawn from a seed, or made of certain kinds."""

from __future__ import annotations

import dataclasses
from random import Random
from typing import TYPE_CHECKING

from tests.planted.kind import HEAD, Kind
from tests.planted.table import KINDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

SIZES = (8, 100, 100, 100, 3000)
"""Elements of an array. Most are alike: by its form alone no array can be told from another test's."""
PAUSES = (0.0, 0.0, 0.0, 0.0, 0.02, 0.06, 0.3, 1.2)
"""Seconds that a test takes: below and above what a check could be tempted to think cheap."""
COUNTS = (1, 1, 1, 3)
"""Tests made of one function."""

HOOK = """\
SETTLE = []


def pytest_gpuleak_settle():
    for release in SETTLE:
        release()


"""
"""Written where a kind has the hook release something: each test is then settled before it is run again."""


@dataclasses.dataclass(frozen=True)
class Suite:
    """Test files, whose tests' names tell their verdicts (see `Kind`).

    Attributes:
        name: what it is called in a message.
        files: their sources by name.
        conftest: that of the conftest.py.
        ordered: whether the verdicts hold in this order alone: what a test leaves is charged to the first that does.
        kinds: what each number in a test's name stands for.
    """

    name: str
    files: Mapping[str, str]
    conftest: str = ""
    ordered: bool = False
    kinds: tuple[str, ...] = ()

    def write(self, folder: Path) -> None:
        """Write the suite's files into a folder that exists."""
        (folder / "pytest.ini").write_text("[pytest]\n")
        (folder / "conftest.py").write_text(self.conftest)
        for name, source in self.files.items():
            (folder / name).write_text(source)

    def kind_of(self, test: str) -> str:
        """Return the name of the kind that a test belongs to; empty: none."""
        number = test.removeprefix("test_").partition("_")[0].partition("[")[0]
        return self.kinds[int(number)] if number.isdecimal() and int(number) < len(self.kinds) else ""


def suite_of(name: str, kinds: Sequence[Kind]) -> Suite:
    """Return the suite that has each of the kinds once, as it is, without a pause."""
    return _made(name, kinds, [kind.fill(number) for number, kind in enumerate(kinds)])


def draw_suite(seed: int, count: int) -> Suite:
    """Draw a suite of so many kinds; the same for the same seed and the same table of kinds.

    Each kind is drawn once before any is drawn twice. Half of the suite leaks, more or less.
    """
    random = Random(seed)
    names = [name for name, kind in KINDS.items() if not (kind.ordered or kind.apart)]
    drawn: list[str] = []
    while len(drawn) < count:
        drawn += random.sample(names, min(len(names), count - len(drawn)))
    kinds = [KINDS[name] for name in drawn]
    parts = [
        kind.fill(number, f"torch.ones({random.choice(SIZES)})", random.choice(PAUSES), random.choice(COUNTS))
        for number, kind in enumerate(kinds)
    ]
    return _made(f"seed {seed}", kinds, parts)


def _made(name: str, kinds: Sequence[Kind], parts: Sequence[str]) -> Suite:
    common = [f"# {kind.name}\n{part}" for kind, part in zip(kinds, parts, strict=True) if not kind.file]
    ends = ("def test_first():\n    pass\n", "def test_last():\n    pass\n")
    files = {"test_common.py": "\n\n".join((HEAD, ends[0], *common, ends[1]))} if common else {}
    files |= {f"test_{number}.py": parts[number] for number, kind in enumerate(kinds) if kind.file}
    conftest = "".join(kind.fill_conftest(number) for number, kind in enumerate(kinds))
    ordered = any(kind.ordered for kind in kinds)
    return Suite(name, files, HOOK * ("SETTLE" in conftest) + conftest, ordered, tuple(kind.name for kind in kinds))
