"""Lines that no reference leads to, found in the source: one such line is told, several are not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak.explain.source_lines import line_of_adding, line_of_hook, line_of_registration

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
        ("TWICE", None),
        ("x" * 10_000, None),
        ("[0]", None),
    ],
)
def test_the_only_line_that_adds_to_a_container_is_found(file: str, container: str, line: int | None) -> None:
    assert line_of_adding(file, container) == line


def test_a_hook_is_found_and_a_file_that_is_gone_tells_nothing(file: str) -> None:
    assert line_of_hook(file, "tap") == 7
    assert line_of_hook(f"{file}.gone", "tap") is None
