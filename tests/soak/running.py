"""Runs a random suite without and with the plugin, each in processes of its own with a time limit."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.soak.support import RECORDER
from tests.support.process_groups import end_group

if TYPE_CHECKING:
    from tests.soak.suites import Suite

ROOT = Path(__file__).resolve().parent.parent.parent
LIMIT_S = 120.0
"""Seconds after which a run of pytest is taken for one that hangs. On an idle machine it takes one or two."""

GRACE_S = 5.0
"""Seconds that processes which a suite leaves may take to end."""


@dataclasses.dataclass
class Outcome:
    """What came of one run of pytest.

    Attributes:
        status: its exit status; None: it did not end in time.
        records: what the recorder noted.
        output: what it printed, both streams.
        report: the plugin's JSON report, where there is one.
        left: processes that it left behind and that did not end.
    """

    status: int | None
    records: list[dict[str, Any]]
    output: str
    report: dict[str, Any] | None
    left: bool


@dataclasses.dataclass
class Side:
    """The runs of a suite without the plugin, or with it.

    Attributes:
        folder: where it ran.
        outcomes: of its runs: one, or two for a suite that is run twice.
        files: what stands in the folder afterwards, by path, with the content.
    """

    folder: Path
    outcomes: list[Outcome]
    files: dict[str, bytes]


def run_suite(suite: Suite, folder: Path, limit_s: float = LIMIT_S, extra: tuple[str, ...] = ()) -> tuple[Side, Side]:
    """Run a suite both ways, at the same time. Files are written to folders below `folder`, which is made.

    Args:
        suite: it.
        folder: a place of its own.
        limit_s: of each run of pytest.
        extra: options of the run with the plugin, beside the suite's.
    """
    turns = [suite.options] if suite.again is None else [suite.options, (*suite.options, *suite.again)]
    sides = []
    for name in ("bare", "with"):  # of equal length: pytest cuts long texts, paths among them
        place = folder / name / "suite"
        place.mkdir(parents=True)
        (place.parent / "soak_recorder.py").write_text(RECORDER)
        suite.write(place)
        sides.append(Side(place, [], {}))
    switches = (("-p", "no:gpuleak"), ("-p", "pytest_gpuleak.plugin", "--gpu-leak", *suite.plugin_options, *extra))
    for turn, options in enumerate(turns):
        started = [
            _start(suite, side.folder, (*options, *switch), turn) for side, switch in zip(sides, switches, strict=True)
        ]
        ends = time.monotonic() + limit_s
        for side, process in zip(sides, started, strict=True):
            side.outcomes.append(_finish(process, side.folder, turn, ends))
    for side in sides:
        side.files = _files(side.folder)
    return sides[0], sides[1]


def _start(suite: Suite, folder: Path, options: tuple[str, ...], turn: int) -> subprocess.Popen[bytes]:
    plugins = [part for name in ("soak_recorder", *suite.plugins) for part in ("-p", name)]
    command = [sys.executable, "-B", "-m", "pytest", *plugins, *options]
    (folder.parent / "command.txt").write_text(" ".join(command) + "\n")
    paths = [str(ROOT), str(folder.parent), os.environ.get("PYTHONPATH", "")]
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("GITHUB_", "GITLAB_", "PYTEST_", "CI"))
    }
    environment = {
        **kept,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "PYTHONHASHSEED": "0",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "SOAK_RECORDS": str(folder.parent / f"records-{turn}.jsonl"),
        "COLUMNS": "120",
        "TMPDIR": str(folder.parent),
    }
    with (folder.parent / f"output-{turn}.txt").open("wb") as output:
        return subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _finish(process: subprocess.Popen[bytes], folder: Path, turn: int, ends: float) -> Outcome:
    status: int | None = None
    with contextlib.suppress(subprocess.TimeoutExpired):
        status = process.wait(max(0.1, ends - time.monotonic()))
    left = end_group(process.pid, GRACE_S if status is not None else 0.0)
    process.wait()
    records = folder.parent / f"records-{turn}.jsonl"
    lines = records.read_text().splitlines() if records.exists() else []
    report = folder / "gpuleak.json"
    return Outcome(
        status,
        [json.loads(line) for line in lines],
        (folder.parent / f"output-{turn}.txt").read_text(errors="replace"),
        json.loads(report.read_text()) if report.exists() else None,
        left,
    )


def _files(folder: Path) -> dict[str, bytes]:
    """What a run has left in its folder; symbolic links by where they point to."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = b"-> " + os.fsencode(os.path.basename(os.readlink(path)))  # noqa: PTH115, PTH119
        elif path.is_file():
            found[name] = path.read_bytes()
        elif path.is_dir():
            found[name + "/"] = b""
    return found
