"""Lines that no reference leads to, found in the source: one such line is told, several are not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak.explain.source_lines import (
    line_of_adding,
    line_of_adding_by_alias,
    line_of_adding_to_item,
    line_of_giving,
    line_of_hook,
    line_of_registration,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.interpreter

SOURCE = """\
# HISTORY.append(1)
atexit.register(self.flush)
weakref.finalize(self, self.close)
signal.signal(signal.SIGUSR2, Saver())
Thread(target=serve, args=(1,))
current.set(value)
layer.register_forward_hook(self.tap)
HISTORY.append(step)
self.seen[key] = value
stock.setdefault("new", []).append(item)
heapq.heappush(app.QUEUE, item)
TWICE.append(1)
TWICE.append(2)
def register(flush_all): pass
totals["loss"] += loss
stack.enter_context(opened)
LOG.addFilter(only_errors)
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "app.py"
    path.write_text(SOURCE, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("root", "line"),
    [
        ("atexit callback app.Writer.flush", 2),
        ("atexit callback app.Writer.other", None),
        ("weakref.finalize callback app.Pool.close of app.Pool, which it refers to", 3),
        ("signal.getsignal(signal.SIGUSR2)", 4),
        ("thread 'Thread-2 (serve)' in serve: local 'x'", 5),
        ("app.current.get()", 6),
        ("app.HISTORY", None),
    ],
)
def test_the_call_that_registers_a_root_is_found(file: str, root: str, line: int | None) -> None:
    assert line_of_registration(file, root) == line


@pytest.mark.parametrize(
    ("container", "line"),
    [
        ("HISTORY", 8),
        (".seen", 9),
        ("['new']", 10),
        ("QUEUE", 11),
        ("totals", 15),
        ("stack", None),
        ("TWICE", None),
        ("x" * 10_000, None),
        ("[0]", None),
    ],
)
def test_the_only_line_that_adds_to_a_container_is_found(file: str, container: str, line: int | None) -> None:
    assert line_of_adding(file, container) == line


@pytest.mark.parametrize(
    ("owner", "line"), [("stack", 16), ("LOG", 17), ("layer", 7), (".seen", None), ("TWICE", None), ("[0]", None)]
)
def test_the_only_line_that_gives_a_library_s_object_something_is_found(
    file: str, owner: str, line: int | None
) -> None:
    assert line_of_giving(file, owner) == line


def test_of_several_lines_that_one_is_found_which_ran(file: str) -> None:
    assert line_of_adding(file, "TWICE", [13, 99]) == 13
    assert line_of_adding(file, "TWICE", [12, 13]) is None
    assert line_of_adding(file, "HISTORY", [99]) == 8


def test_a_hook_is_found_and_a_file_that_is_gone_tells_nothing(file: str) -> None:
    assert line_of_hook(file, "tap") == 7
    assert line_of_hook(f"{file}.gone", "tap") is None


ALIASES = """\
def record(run, loss):
    steps = metrics.HISTORY.setdefault(str(run), [])  # of the run

    steps.append(loss)

def other(steps):
    steps.append(1)

class Trainer:
    def __init__(self):
        self.log: list = CURVES[0]
        mine = self.queue
        mine += [1]

    def step(self):
        # self.log.append(0)
        self.log.append(loss)

POINTS[key].append(1)
SEEN = app.TWO[0]
SEEN.append(1)
SEEN.append(2)
PARENT.CURVES = CURVES
"""


@pytest.mark.parametrize(
    ("container", "line"),
    [
        ("HISTORY", 4),
        ("CURVES", 17),
        ("POINTS", 19),
        ("TWO", None),
        (".HISTORY", 4),
        (".CURVES", None),
        (".queue", None),
        ("['HISTORY']", None),
        ("x" * 10_000, None),
    ],
)
def test_the_only_line_that_adds_to_an_item_is_found_also_by_another_name(
    tmp_path: Path, container: str, line: int | None
) -> None:
    path = tmp_path / "app.py"
    path.write_text(ALIASES, encoding="utf-8")
    assert line_of_adding_to_item(str(path), container) == line


@pytest.mark.parametrize(("container", "line"), [(".queue", 13), ("HISTORY", None), ("queue", 13), ("CURVES", None)])
def test_the_only_line_that_adds_by_another_name_is_found(tmp_path: Path, container: str, line: int | None) -> None:
    path = tmp_path / "app.py"
    path.write_text(ALIASES, encoding="utf-8")
    assert line_of_adding_by_alias(str(path), container) == line


def test_an_odd_source_is_searched_in_no_time(tmp_path: Path) -> None:
    path = tmp_path / "app.py"
    path.write_text("x = a.a.a." * 20_000 + "\n" + "Q[" * 50_000 + "\n" + "Q.get(" + "(" * 50_000, encoding="utf-8")
    assert line_of_adding_to_item(str(path), "Q") is None
