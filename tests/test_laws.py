"""What the laws of a verdict forbid in the source: clocks that choose, and limits that nobody has written down."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

import pytest_gpuleak

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE: Final = Path(pytest_gpuleak.__file__).parent
LIMITS: Final = PACKAGE / "engine/limits.py"

READS_CLOCKS: Final = {
    "heap/long_work.py": "tells the user that work takes long",
    "adapters/processes/facts.py": "tells the age of a process that was left",
}
"""What the clock is read for there. Nothing depends on it."""

CLOCKS: Final = {
    *("monotonic", "perf_counter", "process_time", "thread_time", "time", "clock_gettime"),
    *("monotonic_ns", "perf_counter_ns", "process_time_ns", "thread_time_ns", "time_ns", "clock_gettime_ns"),
    *("localtime", "gmtime", "ctime", "strftime"),
}
OTHER_CLOCKS: Final = {("os", "times"), ("datetime", "now"), ("datetime", "utcnow"), ("date", "today")}

TIMES_AND_SHARES: Final = {
    # Waits that stop, and what is waited for between two looks, in seconds.
    "engine/limits.py": {
        *("CHECK_LIMIT_S", "FIRST_WAIT_S", "LONGEST_WAIT_S", "ALL_WAITS_S", "KNOWN_THREADS_WAIT_S", "DEVICE_STEP_S"),
        # Shares of bytes, and CPython's own of the heap's objects, by which it times a collection.
        *("SLACK_SHARE", "REST_SHARE", "SMALL_SHARE", "MINOR_SHARE", "LONG_LIVED_SHARE"),
    },
    "heap/threads.py": {"ENDS_S", "_STEP_S"},
    "heap/async_exceptions.py": {"BEGIN_S", "CLEAR_S"},
    "adapters/processes/facts.py": {"FIRST_WAIT_S"},
    "adapters/jax/reading.py": {"_WAITS_S"},
    "adapters/torch/backward_pass.py": {"KEPT_S", "LONGEST_INTERVAL_S", "_TURN_S", "_HALF_A_TICK_S"},
    # When the user is told that work takes long.
    "heap/long_work.py": {"LONG_WORK_S", "TELL_EVERY_S"},
    "heap/budget.py": {"_TELL_EVERY"},
}

NO_LIMITS: Final = {
    "engine/judge/counters.py": {"BLOCK", "LARGE", "ARRAY_OBJECTS", "CONTRIBUTIONS_SHOWN"},  # facts of allocators
    "engine/peaks.py": {"_UNIT"},
    # What a text lists.
    "engine/judge/arrays.py": {"MAX_BESIDE", "MAX_CYCLE_SHOWN", "MAX_DEVICES_SHOWN"},
    "engine/confirm/added.py": {"MAX_SHOWN", "MAX_FILES_NAMED"},
    "engine/judge/processes.py": {"MAX_SHOWN"},
    "engine/left_behind.py": {"MAX_HOLDERS"},
    "engine/stages.py": {"_MAX_NAME"},
}
"""The engine's numbers that stand beside what they describe: they bound no look, no walk and no verdict."""


def modules(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (PACKAGE / folder).rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def constants(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield the constants that are set anywhere in a module, and their values."""
    for node in ast.walk(tree):
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        value = getattr(node, "value", None)
        for target in targets:
            names = [target, *(target.elts if isinstance(target, ast.Tuple) else ())]
            for one in names:
                if isinstance(one, ast.Name) and re.fullmatch(r"_*[A-Z][A-Z0-9_]*", one.id) and value is not None:
                    yield one.id, value


def is_number(value: ast.expr) -> bool:
    parts = [node for node in ast.walk(value) if not isinstance(node, (ast.operator, ast.unaryop))]
    return all(isinstance(node, (ast.BinOp, ast.UnaryOp, ast.Constant)) for node in parts) and all(
        type(node.value) in (int, float) for node in parts if isinstance(node, ast.Constant)
    )


def reads_clock(tree: ast.AST) -> bool:
    imported, attributes = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            imported |= {(node.module, alias.name) for alias in node.names}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, (ast.Name, ast.Attribute)):
            owner = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
            attributes.add((owner, node.attr))
    used = imported | attributes
    return any(owner == "time" and name in CLOCKS for owner, name in used) or not OTHER_CLOCKS.isdisjoint(used)


@pytest.mark.parametrize("path", modules("engine", "explain", "heap", "adapters"), ids=name_of)
def test_a_clock_may_stop_and_never_choose(path: Path) -> None:
    """What looks, searches and judges reads no clock: it counts what it meets, which is the same on each machine."""
    assert reads_clock(tree_of(path)) is (name_of(path) in READS_CLOCKS)


@pytest.mark.parametrize(
    "source",
    [
        "from time import perf_counter",
        "from time import monotonic_ns as now",
        "import time\ntime.process_time()",
        "import os\nos.times()",
        "import datetime\ndatetime.datetime.now()",
    ],
)
def test_a_clock_is_recognised(source: str) -> None:
    assert reads_clock(ast.parse(source))
    assert not reads_clock(ast.parse("from time import sleep\nimport time\ntime.sleep(1)\nfound.time"))


def test_times_and_shares_are_waits_and_parts_of_bytes() -> None:
    """A count of looks in vain, a share of a session's time, a rule for every so many tests: no verdict has one."""
    marked = {"S", "SHARE", "SHARES", "VAIN", "EVERY"}
    found: dict[str, set[str]] = {}
    for path in modules("engine", "explain", "heap", "adapters"):
        names = {name for name, _ in constants(tree_of(path)) if not marked.isdisjoint(name.split("_"))}
        if names:
            found[name_of(path)] = names
    assert found == TIMES_AND_SHARES


def limits() -> list[tuple[str, str]]:
    """Return the limits with their docstrings."""
    body = tree_of(LIMITS).body
    found = []
    for node, after in zip(body, [*body[1:], ast.Pass()], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            text = ast.literal_eval(after.value) if isinstance(after, ast.Expr) else ""
            found.append((node.target.id, str(text)))
    return found


@pytest.mark.parametrize(("name", "text"), limits(), ids=lambda value: value if value.isupper() else "")
def test_each_limit_says_whether_it_stops_orders_or_bounds(name: str, text: str) -> None:
    assert re.search(r"\b(Stops|Orders|Bounds)\b", text), name


def test_all_limits_of_the_engine_stand_together() -> None:
    assert len(limits()) == len(list(constants(tree_of(LIMITS)))) > 30
    found: dict[str, set[str]] = {}
    for path in modules("engine"):
        names = {name for name, value in constants(tree_of(path)) if is_number(value)}
        if names and path != LIMITS:
            found[name_of(path)] = names
    assert found == NO_LIMITS
