"""What several runs look like on a terminal of 80 and of 120 columns, in Markdown, HTML and SARIF: whole texts, to be read in review.

    UPDATE_SNAPSHOTS=1 pytest tests/reports/test_snapshots.py

writes them again; read the difference before it is committed.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.model.findings import (
    ArrayInfo,
    Autograd,
    BaselineStatus,
    Contribution,
    Finding,
    FixtureRecord,
    Holder,
    KnownLeak,
    PathStep,
)
from pytest_gpuleak.model.source_files import Origin
from pytest_gpuleak.model.summary import summarise
from pytest_gpuleak.model.text import width_of
from pytest_gpuleak.reports import markdown, sarif
from pytest_gpuleak.reports.html import page as html
from pytest_gpuleak.reports.source_places import findings_of
from pytest_gpuleak.reports.terminal.baseline import render_stale
from pytest_gpuleak.reports.terminal.section import render_codes, render_leaks
from pytest_gpuleak.reports.terminal.short_summary import render_short_summary
from pytest_gpuleak.reports.terminal.summary import render_summary
from tests.reports.conftest import Make
from tests.reports.test_html import Page
from tests.support.hostile import hostile_report

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_gpuleak.model.records import RunReport

FOLDER = Path(__file__).with_name("snapshots")
MIB = 1024**2


def arrays(*sizes: int, created: Origin | None = None) -> tuple[ArrayInfo, ...]:
    return tuple(ArrayInfo((size // 4,), "float32", "cuda:0", size, size, created) for size in sizes)


LOSS = Make.finding(
    bytes=84582,
    bytes_per_run=84582,
    count=18,
    tensors=(
        *arrays(65536, 16384, created=Origin("trainer/model.py", 23, "__init__", "self.embedding = nn.Linear(width, width)")),
        *arrays(2662, created=Origin("trainer/loop.py", 40, "step", "loss = criterion(model(batch), target)")),
    ),
    holder=Holder(
        "module", "trainer.metrics.HISTORY", "trainer.metrics.HISTORY['falls-4'][0].loss",
        (PathStep("['falls-4']", "dict"), PathStep("[0]", "list"), PathStep(".loss", "trainer.metrics.Record")),
        "trainer/metrics.py", 17, 1, "trainer/loop.py", 42,
    ),
    hint="Each run adds to `trainer.metrics.HISTORY`, and what it adds keeps its autograd graph: store what `.item()` or "
    "`.detach()` returns, or empty it in teardown.",
    code="GL701",
    autograd=Autograd(582, 3, 8192),
)  # fmt: skip
INDEX = Make.finding(
    kind="retained",
    bytes=5 * MIB,
    bytes_per_run=0,
    tensors=arrays(5 * MIB),
    holder=Holder(
        "class", "trainer.retrieval.EmbeddingIndex._open",
        "trainer.retrieval.EmbeddingIndex._open[('points', 'cpu')].vectors",
        (PathStep("[('points', 'cpu')]", "dict"), PathStep(".vectors", "trainer.retrieval.EmbeddingIndex")),
        "trainer/retrieval.py", 12, 0,
    ),
    other_holders=(
        Holder("cache", "trainer.retrieval.load", "trainer.retrieval.load (cached result)", (), "trainer/retrieval.py", 40),
    ),
    hint="The class attribute `trainer.retrieval.EmbeddingIndex._open` stays as long as its class: take out in teardown "
    "what was put there.",
    code="GL702",
    why_line_unknown="a fixture is not run again by itself, and lines are recorded only in a re-run",
)  # fmt: skip
CYCLE = Make.finding(
    kind="cycle",
    failed=False,
    count=4,
    bytes=MIB,
    bytes_per_run=0,
    tensors=arrays(*[MIB // 4] * 4),
    holder=Holder(
        "unknown", "a reference cycle", "trainer.callbacks.Callback.trainer.callbacks[0]",
        (PathStep(".trainer", "trainer.callbacks.Callback"), PathStep(".callbacks", "trainer.loop.Trainer"),
         PathStep("[0]", "list")),
        None, None, 0, "trainer/callbacks.py", 11,
    ),
    hint="The memory is freed only when the garbage collector runs: let one of these references be a `weakref.ref`.",
)  # fmt: skip
HOST = Make.finding(
    kind="host",
    device="cpu",
    metric="heap",
    count=0,
    tensors=(),
    holder=Holder("module", "app.LOG", "app.LOG[0]", (PathStep("[0]", "list"),), "app.py", 3),
    bytes=64 * MIB,
    bytes_per_run=32 * MIB,
    contributions=(
        Contribution(
            "bytearray",
            48 * MIB,
            3,
            None,
            Holder("module", "app.LOG", "app.LOG[0]", (PathStep("[0]", "list"),), "app.py", 3),
        ),
        Contribution("app.py:8 in read: buffer = bytearray(size)", 16 * MIB),
    ),
    evidence=("heap grew by 32.0 MiB and 32.0 MiB",),
)
UNKNOWN = Make.finding(
    holder=None, tensors=(), kind="unconfirmed", why_unconfirmed="the test took 70 s, over the limit of 60 s"
)
KNOWN = Make.finding(failed=False, known=True, baseline=BaselineStatus("known", "the vendor's cache, ticket 12"))


def wide_names() -> RunReport:
    """Names of two columns a character, of combining characters, and of ten thousand letters."""
    name = "テスト_メモリ漏れ_" * 6
    long = "x" * 10_000
    found = dataclasses.replace(
        LOSS,
        holder=Holder(
            "module", f"アプリ.{name}", f"アプリ.{name}['{name}'].{long}",
            (PathStep(f"['{name}']", "dict"), PathStep(f".{long}", f"アプリ.{name}")), f"アプリ/{name}.py", 7, 0,
        ),
        hint=f"Each run adds to `{name}` and nothing takes it out: empty it in teardown, or store plain values.",
    )  # fmt: skip
    return Make.report(
        Make.test(f"t.py::test_{name}[é́́-\u202eabc\u200f\x1b[31m]", found), Make.test(f"t.py::test_{long}", HOST)
    )


def of_size(size: int, root: str = "trainer.metrics.HISTORY", **changes: Any) -> Finding:
    """A loss kept with its graph, of `size` bytes."""
    assert LOSS.holder is not None
    text = LOSS.holder.text.replace("trainer.metrics.HISTORY", root)
    holder = dataclasses.replace(LOSS.holder, root=root, text=text)
    tensors = arrays(size, created=LOSS.tensors[-1].created)
    return dataclasses.replace(LOSS, bytes=size, bytes_per_run=size, count=1, tensors=tensors, holder=holder, **changes)


def many() -> RunReport:
    """10,000 tests with 500 leaks of 12 culprits."""

    def leak(index: int) -> Finding:
        return of_size(1024 * (index % 12 + 1) + index, f"trainer.metrics.HISTORY_{index % 12}")

    tests = [Make.test(f"tests/test_many.py::test_it[{index}]", leak(index)) for index in range(500)]
    return Make.report(*tests, *(Make.test(f"tests/test_many.py::test_ok[{index}]") for index in range(9_500)))


def one_holder() -> RunReport:
    tests = [Make.test(f"tests/test_loop.py::test_falls[{size}]", of_size(size)) for size in (16, 8 * MIB, 64, 36, 100)]
    fixture = FixtureRecord("history", "module", "tests", (of_size(84582, kind="retained"),), "tests/conftest.py", 9)
    return Make.report(*tests, fixtures=(fixture,))


def baseline() -> RunReport:
    """Known leaks, one that has grown, one that is gone, in a run that was stopped."""
    known = dataclasses.replace(LOSS, failed=False, known=True, baseline=BaselineStatus("known", "until ticket 12"))
    grown = dataclasses.replace(INDEX, baseline=BaselineStatus("grown", "from 3.0 MiB to 5.0 MiB"))
    return Make.report(
        Make.test("tests/test_loop.py::test_the_loss_falls[4]", known),
        Make.test("tests/test_index.py::test_search", grown),
        Make.test("tests/test_index.py::test_skipped", verdict="unchecked", why_unchecked="skipped", outcome="skipped"),
        stale=(KnownLeak("tests/test_a.py::test_b", None, "growing", "cuda", 5 * MIB, "0a", "app.CACHE", "until #12"),),
        incomplete="stopped after 1 failure (-x)",
    )


def devices() -> RunReport:
    """Two devices and a process, of two xdist workers; a test whose check took seconds."""
    unattributed = Make.finding(
        kind="unattributed", device="cuda:1", metric="allocated", count=0, tensors=(), holder=None, bytes=512 * MIB,
        bytes_per_run=512 * MIB, contributions=(Contribution("a block of 512.0 MiB", 512 * MIB, 1,
        Origin("trainer/kernels.py", 8, "workspace", "return ext.alloc(size)")),),
        evidence=("allocated on cuda:1 grew by 512.0 MiB and 512.0 MiB",),
    )  # fmt: skip
    process = Make.finding(
        kind="process", device="cpu", metric="pid 4711", tensors=(), holder=None, bytes=300 * MIB,
        bytes_per_run=300 * MIB, contributions=(Contribution("python -m trainer.worker", 300 * MIB, 1,
        Origin("trainer/data.py", 31, "start", "self.worker.start()")),),
    )  # fmt: skip
    on_second = dataclasses.replace(LOSS, device="cuda:1", bytes=2 * LOSS.bytes)
    seconds = {"check": 2.31, "reruns": 0.9, "search": 1.2}

    def memory(size: int) -> dict[str, dict[str, int]]:
        return {
            "cuda:0": {"allocated_before": size, "allocated_after": size + MIB, "peak": 2 * size},
            "cuda:1": {"allocated_before": 0, "allocated_after": size // 2, "peak": size},
        }

    return Make.report(
        Make.test("tests/test_loop.py::test_two", LOSS, on_second, worker="gw0", memory=memory(MIB), suspect_s=seconds),
        Make.test("tests/test_kernels.py::test_workspace", unattributed, worker="gw1", memory=memory(8 * MIB)),
        Make.test("tests/test_data.py::test_loads", process, worker="gw1", memory=memory(9 * MIB)),
        Make.test("tests/test_data.py::test_clean", worker="gw0", memory=memory(9 * MIB)),
    )


def hostile() -> RunReport:
    """Markup, control characters, marks of right-to-left writing and workflow commands, in each text of a run."""
    return hostile_report(Make, "<b>x</b>|\x1b[31m\u202e`y`\n::error::z")


RUNS: dict[str, Callable[[], RunReport]] = {
    "clean": lambda: Make.report(Make.test("t.py::test_a")),
    "three": lambda: Make.report(
        Make.test("tests/test_loop.py::test_the_loss_falls[4]", LOSS),
        Make.test("tests/test_log.py::test_reads", HOST),
        fixtures=(FixtureRecord("index", "module", "tests", (INDEX,), "tests/conftest.py", 32),),
    ),
    "one-holder": one_holder,
    "notes": lambda: Make.report(
        *(Make.test(f"tests/test_fit.py::test_fit[{index}]", CYCLE) for index in range(5)),
        Make.test("tests/test_fit.py::test_native", dataclasses.replace(CYCLE, holder=None, hint=None)),
        Make.test("tests/test_fit.py::test_known", KNOWN),
        Make.test(
            "tests/test_fit.py::test_allowed",
            dataclasses.replace(LOSS, failed=False),
            verdict="allowed",
            allowed="a pool that the vendor keeps",
        ),
    ),
    "unknown": lambda: Make.report(Make.test("tests/test_slow.py::test_slow", UNKNOWN)),
    "many": many,
    "wide": wide_names,
    "baseline": baseline,
    "devices": devices,
    "hostile": hostile,
}


def counted(report: RunReport) -> RunReport:
    """The report with the counts of its records, as at the end of a run."""
    summary = {**report.summary, **summarise(report.tests, report.fixtures), "overhead_per_test_us": 21.4}
    known = sum(found.known for _, found in findings_of(report))
    return dataclasses.replace(report, summary={**summary, "known": known, "stale": len(report.stale)})


def terminal(report: RunReport, width: int, verbosity: int) -> str:
    lines = render_leaks(report, verbosity=verbosity, width=width)
    lines += render_stale(report.stale, "leaks.toml", fails=False)
    summary = [*render_codes(report), render_summary(report.summary)]
    return "\n".join([*lines, *summary, *render_short_summary(report.tests, report.fixtures)]) + "\n"


BLOCKS = re.compile(
    r"<(?:p|li|tr|nav|form|label|select|h\d|summary|dt|div|caption|option|figcaption|section|pre|details|button|svg)\b"
)


def text_of_page(report: RunReport) -> str:
    """What the HTML report says, without its scripts: a line a block."""
    page = BLOCKS.sub(lambda tag: f"\ue000{tag[0]}", html.encode_report(report))
    blocks = "".join(f" {text}" for text in Page(page).texts).split("\ue000")
    return "\n".join(filter(None, (" ".join(block.split()) for block in blocks))) + "\n"


def results(report: RunReport) -> str:
    """The results of a SARIF report, a property a line."""
    found = json.loads(sarif.encode_report(report))["runs"][0]["results"]
    lines = [",\n ".join(f'"{name}": {json.dumps(value)}' for name, value in result.items()) for result in found]
    return "[\n" + ",\n".join(f"{{{line}}}" for line in lines) + "\n]\n"


TEXTS: dict[str, Callable[[RunReport], str]] = {
    "80.txt": lambda report: terminal(report, 80, 0),
    "120.txt": lambda report: terminal(report, 120, 0),
    "verbose.txt": lambda report: terminal(report, 80, 1),
    "md": markdown.encode_report,
    "html.txt": text_of_page,
    "sarif": results,
}
LINES = 300
"""Lines of a text that are kept: no reviewer reads a longer one to its end."""

PAIRS = [(run, text) for run in RUNS for text in TEXTS]


def cut(text: str) -> str:
    lines = text.splitlines(keepends=True)
    more = len(lines) - LINES
    return "".join(lines[:LINES]) + (f"... and {more} more lines\n" if more > 0 else "")


@pytest.mark.parametrize(("run", "text"), PAIRS, ids=".".join)
def test_a_run_reads_as_it_was_reviewed(run: str, text: str) -> None:
    written = cut(TEXTS[text](counted(RUNS[run]())))
    path = FOLDER / f"{run}.{text}"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.write_text(written, encoding="utf-8", newline="\n")
    assert written == path.read_text(encoding="utf-8")


def test_every_snapshot_is_of_a_run() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {f"{run}.{text}" for run, text in PAIRS}


@pytest.mark.parametrize("width", [80, 120])
def test_500_leaks_of_12_culprits_fit_on_two_screens(width: int) -> None:
    assert terminal(counted(many()), width, 0).count("\n") <= 2 * 60


@pytest.mark.parametrize("width", [80, 120])
def test_wide_names_fit_the_terminal(width: int) -> None:
    lines = render_leaks(wide_names(), verbosity=0, width=width)
    names: Any = [line for line in lines if line.startswith(("LEAKED", "           (", "  created"))]
    assert names
    assert all(width_of(line) <= width for line in lines if line not in names)
    assert all(line.isprintable() for line in lines)
