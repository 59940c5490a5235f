"""The section GPU LEAKS, and the lines below it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuleak.model.findings import Autograd, Contribution, FixtureRecord, Holder, PathStep
from pytest_gpuleak.model.source_files import Origin
from pytest_gpuleak.reports.terminal import findings as terminal
from pytest_gpuleak.reports.terminal import lines as lines_module
from pytest_gpuleak.reports.terminal import section as terminal_section
from pytest_gpuleak.reports.terminal import short_summary
from pytest_gpuleak.reports.terminal.lines import TitleLine
from pytest_gpuleak.reports.terminal.section import render_codes

if TYPE_CHECKING:
    from pytest_gpuleak.model.records import RunReport

GIB = 1024**3


def leaks(report: RunReport, verbosity: int = 0, width: int = 80) -> list[str]:
    return terminal_section.render_leaks(report, verbosity=verbosity, width=width)


class TestSection:
    def test_titles(self, make: Any) -> None:
        def held_by(root: str, **changes: Any) -> Any:
            return make.finding(holder=Holder("module", root, root), **changes)

        fixture = FixtureRecord("model", "module", "tests", (held_by("app.A"),), "tests/test_x.py", 12)
        placeless = FixtureRecord("data", "session", "", (held_by("app.B"),), worker="gw1")
        report = make.report(
            make.test("t.py::test_noted", held_by("app.C", failed=False)),
            make.test("t.py::test_allowed", held_by("app.D"), verdict="allowed", allowed="known\nupstream"),
            make.test("t.py::test_leaked", held_by("app.E"), worker="gw0"),
            fixtures=(fixture, placeless),
        )
        assert [line for line in leaks(report, verbosity=1) if line and not line.startswith(" ")] == [
            "LEAKED t.py::test_leaked [gw0]",
            "LEAKED fixture 'model' (module scope, tests/test_x.py:12)",
            "LEAKED fixture 'data' (session scope) [gw1]",
            "NOTED t.py::test_noted",
            r"ALLOWED t.py::test_allowed: known\nupstream",
        ]

    def test_notes_of_a_test_that_leaked_are_shown_with_v_alone(self, make: Any) -> None:
        report = make.report(make.test("t.py::test_one", make.finding(), make.finding(failed=False, kind="cycle")))
        assert not any("cycle" in line for line in leaks(report))
        assert any("cycle (a note)" in line for line in leaks(report, verbosity=1))

    def test_a_culprit_is_explained_once(self, make: Any) -> None:
        report = make.report(
            make.test("t.py::test_one", make.finding()),
            make.test("t.py::test_two", make.finding()),
        )
        assert leaks(report)[:2] == ["LEAKED 8.0 MiB in 2 tests", "  largest  t.py::test_one, 4.0 MiB"]
        assert leaks(report)[-1] == "  also in  t.py::test_two, 4.0 MiB"
        assert [type(line) for line in leaks(report) if not line.startswith(" ")] == [TitleLine]

    def test_the_largest_of_a_holder_is_explained_and_the_sum_and_each_fixture_are_named(self, make: Any) -> None:
        def added(size: int, kind: str = "growing") -> Any:
            return make.finding(kind=kind, bytes=size, bytes_per_run=0)

        tests = [make.test(f"t.py::test_it[{index}]", added(16)) for index in range(6)]
        tests[3] = make.test("t.py::test_it[3]", added(8 * 1024**2))
        fixture = FixtureRecord("index", "module", "", (added(1024**2, "retained"),), "t.py", 9)
        other = make.finding(bytes=3, holder=Holder("module", "app.LAST", "app.LAST[0]"))
        report = make.report(make.test("t.py::test_other", other), *tests, fixtures=(fixture,))
        lines = leaks(report)
        assert lines[:3] == [
            "LEAKED 9.0 MiB in 6 tests, fixture 'index'",
            "  largest  t.py::test_it[3], 8.0 MiB",
            "  growing: 1 tensor, 8.0 MiB on cuda:0; each run leaves 0 bytes more",
        ]
        start = lines.index("  also in  fixture 'index' (module scope, t.py:9), 1.0 MiB")
        assert lines[start + 1 : start + 6] == [
            "           t.py::test_it[0], 16 bytes",
            "           t.py::test_it[1], 16 bytes",
            "           and 3 more (-v shows all)",
            "",
            "LEAKED t.py::test_other",
        ]

    def test_what_a_fixture_keeps_until_its_teardown_takes_a_line_from_the_limit_up(self, make: Any) -> None:
        def kept(size: int, **changes: Any) -> Any:
            holder = Holder(
                "fixture", "fixture 'data'", "fixture 'data'.trainer.model", (PathStep(".trainer", "DataModule"),)
            )
            note = make.finding(kind="retained", failed=False, bytes=size, holder=holder, until_teardown=True)
            return dataclasses.replace(note, **changes)

        tests = [
            make.test("t.py::test_small", kept(1024**2 - 1)),
            make.test("t.py::test_a", kept(1024**2)),
            make.test("t.py::test_b", kept(3 * 1024**2)),
            make.test("t.py::test_note", kept(1024**3, until_teardown=False)),
        ]
        line = "NOTED 3.0 MiB held by fixture 'data'.trainer until its teardown (t.py::test_a"
        assert leaks(make.report(*tests)) == [line, "  and 1 more)"]
        assert leaks(make.report(*tests), width=120) == [line + " and 1 more)"]
        assert leaks(make.report(tests[0])) == []
        assert leaks(make.report(make.test("t.py::test_one", make.finding()), *tests))[-3:] == [
            "",
            line,
            "  and 1 more)",
        ]

    def test_attempts_of_a_test_are_one_entry_with_their_sum(self, make: Any) -> None:
        report = make.report(*[make.test("t.py::test_one", make.finding(holder=None)) for _ in range(3)])
        assert leaks(report)[0] == "LEAKED t.py::test_one"
        assert leaks(report)[-1] == "  in all   12.0 MiB in 3 findings"

    def test_other_attributes_of_a_shared_root_are_named(self, make: Any) -> None:
        """Each takes an edit of its own: a test that added to `app.STATE.seen` was told of `app.STATE.model` alone."""

        def held(*edges: str) -> Any:
            path = tuple(PathStep(edge, "list") for edge in edges)
            return make.finding(holder=Holder("module", "app.STATE", "app.STATE" + "".join(edges), path))

        report = make.report(
            make.test("t.py::test_model", held(".model", ".weight")),
            make.test("t.py::test_same", held(".model", ".bias")),
            make.test("t.py::test_seen", held(".seen", "[0]"), held(".last")),
            make.test("t.py::test_item", held("[3]")),
        )
        assert [line.strip() for line in leaks(report)[-3:]] == [
            "also in  t.py::test_seen, 8.0 MiB in .seen, .last",
            "t.py::test_same, 4.0 MiB",
            "t.py::test_item, 4.0 MiB",
        ]

    @pytest.mark.parametrize(("verbosity", "shown"), [(-1, 2000), (0, 40), (1, 2000)])
    def test_thousands_of_holders_are_cut_and_the_cut_is_stated(self, make: Any, verbosity: int, shown: int) -> None:
        found = [make.finding(holder=Holder("module", f"app.A{index}", "")) for index in range(2003)]
        lines = leaks(make.report(*[make.test(f"t.py::test_{at}", one) for at, one in enumerate(found)]), verbosity)
        assert len([root for root in found if any(f" {root.holder.root}  (" in line for line in lines)]) == shown
        assert (
            lines[-1]
            == {
                -1: "and 3 more holders; the JSON report has them",
                0: "and 1963 more holders, 7.7 GiB in all; -v or the JSON report has them",
                1: "and 3 more holders, 12.0 MiB in all; the JSON report has them",
            }[verbosity]
        )

    def test_the_tests_that_met_a_culprit_are_counted_and_all_shown_with_v(self, make: Any) -> None:
        report = make.report(*[make.test(f"t.py::test_it[{index}]", make.finding()) for index in range(500)])
        assert leaks(report)[0] == "LEAKED 2.0 GiB in 500 tests"
        assert leaks(report)[-4:] == [
            "  also in  t.py::test_it[1], 4.0 MiB",
            "           t.py::test_it[2], 4.0 MiB",
            "           t.py::test_it[3], 4.0 MiB",
            "           and 496 more (-v shows all)",
        ]
        assert leaks(report, verbosity=1)[-1] == "           t.py::test_it[499], 4.0 MiB"

    def test_another_culprit_of_the_same_test_keeps_its_title(self, make: Any) -> None:
        other = make.finding(holder=Holder("module", "app.LAST", "app.LAST[0]"), fingerprint="07")
        report = make.report(
            make.test("t.py::test_one", make.finding()), make.test("t.py::test_two", make.finding(), other)
        )
        titles = [line for line in leaks(report) if line.startswith(("LEAKED", "  held by", "  also in"))]
        assert titles == [
            "LEAKED 8.0 MiB in 2 tests",
            "  held by  app.metrics.HISTORY[0]  (module global)",
            "  also in  t.py::test_two, 4.0 MiB",
            "LEAKED t.py::test_two",
            "  held by  app.LAST[0]  (module global)",
        ]

    @pytest.mark.parametrize(
        "holder", [None, Holder("unknown", "", ""), Holder("module", "app.layer2", "app.layer2[0]")]
    )
    def test_another_or_an_unknown_holder_is_no_repetition(self, make: Any, holder: Holder | None) -> None:
        first = make.finding(holder=Holder("module", "app.layer1", "app.layer1[0]") if holder else None)
        report = make.report(
            make.test("t.py::test_one", first), make.test("t.py::test_two", make.finding(holder=holder))
        )
        assert not any("also in" in line or "2 tests" in line for line in leaks(report))

    @pytest.mark.parametrize("width", [80, 120])
    def test_the_section_fits_on_two_screens_whatever_leaks(self, make: Any, width: int) -> None:
        def leak(index: int) -> Any:
            path = (PathStep("['x']", "dict"), PathStep("[0]", "list"), PathStep(".loss", "app.Record"))
            root = f"app.metrics.HISTORY_{index % 12}"
            holder = Holder("module", root, f"{root}['x'][0].loss", path, "app/metrics.py", 17, deciding=1)
            return make.finding(bytes=index, holder=holder, hint="Each run adds to it and nothing takes it out: " * 4)

        tests = [make.test(f"t.py::test_{index}", leak(index)) for index in range(500)]
        report = make.report(*tests, *(make.test(f"t.py::test_{index}") for index in range(500, 10_000)))
        lines = [*leaks(report, width=width), *short_summary.render_short_summary(report.tests, ())]
        assert len(lines) <= 96
        assert all(len(line) <= width for line in lines)
        assert all(sum(f"HISTORY_{index}" in line for line in lines) >= 2 for index in range(12))
        assert lines[-12].startswith("LEAKED 42 tests - 10.4 KiB held by")
        assert " ".join(" ".join(lines[-14:-12]).split()).endswith(
            "9.9 KiB app.metrics.HISTORY_8['x'][0].loss (module global, app/metrics.py:17) in 41 tests"
        )

    def test_few_leaks_are_all_in_the_short_summary_and_many_where_they_are_asked_for(self, make: Any) -> None:
        tests = [make.test(f"t.py::test_{index}", make.finding()) for index in range(21)]
        assert len(short_summary.render_short_summary(tests[:20], ())) == 20
        assert short_summary.render_short_summary(tests, ()) == [
            "LEAKED 21 tests - 84.0 MiB held by app.metrics.HISTORY"
        ]
        assert len(short_summary.render_short_summary(tests, (), every=True)) == 21

    def test_a_leak_with_several_holders_says_so(self, make: Any) -> None:
        other = make.finding(bytes=1 << 20, holder=Holder("module", "app.SEEN", "app.SEEN[0]"))
        lines = short_summary.render_short_summary([make.test("t.py::test_one", make.finding(), other)], ())
        assert lines == ["LEAKED t.py::test_one - 5.0 MiB held by app.metrics.HISTORY and 1 more"]

    def test_q_is_a_line_for_each_holder_and_qq_none(self, make: Any) -> None:
        report = make.report(make.test("t.py::test_one", make.finding(), make.finding(failed=False)))
        both = make.report(
            make.test("t.py::test_one", make.finding()), make.test("t.py::test_two", make.finding(bytes=1))
        )
        (line,) = leaks(both, verbosity=-1)
        assert line.startswith("t.py::test_one and 1 more, 4.0 MiB in all: growing: 1 tensor, ")
        assert leaks(report, verbosity=-1) == [
            (
                "t.py::test_one: growing: 1 tensor, 4.0 MiB on cuda:0; each run leaves 4.0 MiB more, "
                "held by app.metrics.HISTORY[0]  (module global)"
            )
        ]
        assert leaks(report, verbosity=-2) == []

    @given(text=st.text(st.characters(), max_size=700), width=st.integers(0, 200), verbosity=st.integers(-1, 2))
    def test_hostile_text_stays_text(self, make: Any, text: str, width: int, verbosity: int) -> None:
        hostile = make.finding(
            device=text,
            hint=text,
            why_unconfirmed=text,
            holder=Holder("module", text, text, (PathStep(text, text),), text, 3),
            tensors=tuple(
                dataclasses.replace(array, dtype=text, created=Origin(text, 1, text, text))
                for array in make.finding().tensors
            ),
        )
        report = make.report(
            make.test(text, hostile, worker=text),
            make.test(text, hostile, verdict="allowed", allowed=text),
            fixtures=(FixtureRecord(text, "module", text, (hostile,), text, 3),),
        )
        lines = [*leaks(report, verbosity, width), *terminal.render_short(hostile).splitlines()]
        assert lines
        for line in lines:
            assert line.isprintable()
            assert len(line) < 5 * lines_module.TEXT_LIMIT


class TestCodes:
    def test_codes_of_what_failed_by_their_bytes(self, make: Any) -> None:
        report = make.report(
            make.test("t.py::test_one", make.finding(code="GL701", bytes=5), make.finding(code="GL101", bytes=9)),
            make.test("t.py::test_two", make.finding(code="GL701", bytes=5), make.finding(code="GL4", failed=False)),
            fixtures=(FixtureRecord("model", "module", "tests", (make.finding(bytes=7, kind="host"),)),),
        )
        assert render_codes(report) == ["gpu-leak: more on each: gpuleak explain GL701 GL101 GL006"]

    def test_no_leak_no_line(self, make: Any) -> None:
        assert render_codes(make.report(make.test("t.py::test_one", make.finding(failed=False)))) == []


class TestShortSummary:
    def test_memory_without_a_holder_names_the_line_that_made_it(self, make: Any) -> None:
        part = Contribution("python worker.py", 5, 1, Origin("app/data.py", 31, "start", ""))
        process = make.finding(kind="process", holder=None, tensors=(), contributions=(part,))
        tests = [
            make.test("t.py::test_a", dataclasses.replace(process, bytes=9 * GIB)),
            make.test("t.py::test_b", make.finding(kind="unattributed", holder=None, tensors=(), bytes=GIB)),
            make.test("t.py::test_c", make.finding(kind="unconfirmed", holder=None)),
        ]
        assert short_summary.render_short_summary(tests, ()) == [
            "LEAKED t.py::test_a - 1 process left running, started at app/data.py:31",
            "LEAKED t.py::test_b - 1.0 GiB, unattributed",
            "LEAKED t.py::test_c - 4.0 MiB, unconfirmed, created at app/model.py:14",
        ]


def test_what_is_told_briefly_says_the_line_to_edit(make: Any) -> None:
    def held_by(root: str) -> Any:
        holder = Holder("module", root, f"{root}[0]", (PathStep("[0]", "list"),) * 5, "app.py", 3, 0, "app/loop.py", 40)
        return make.finding(holder=holder, hint="word " * 60)

    tests = [make.test(f"t.py::test_{at}", held_by(f"app.A{at}")) for at in range(8)]
    lines = leaks(make.report(*tests))
    assert "  cut at   app/loop.py:40" in lines
    assert any("<- cut here, at app/loop.py:40" in line for line in lines)


class TestTwoDevices:
    HOLDER = Holder(
        "module", "app.H", "app.H['a'][0]", (PathStep("['a']", "dict"), PathStep("[0]", "list")), "app.py", 3, 1
    )

    def leaks_of(self, make: Any, **changes: Any) -> list[str]:
        first = make.finding(holder=self.HOLDER, hint="Empty it.", device="cuda:0", bytes=2 * GIB)
        second = dataclasses.replace(first, device="cuda:1", bytes=GIB, **changes)
        return leaks(make.report(make.test("t.py::test_a", first, second)))

    def test_what_is_the_same_on_both_is_told_once(self, make: Any) -> None:
        lines = self.leaks_of(make)
        assert lines[-2:] == [
            "  growing: 1 tensor, 1.0 GiB on cuda:1; each run leaves 4.0 MiB more",
            "  held by  as above",
        ]
        assert sum("<- cut here" in line for line in lines) == 1

    def test_it_is_told_once_of_eight_devices(self, make: Any) -> None:
        found = [make.finding(holder=self.HOLDER, hint="Empty it.", device=f"cuda:{at}") for at in range(8)]
        lines = leaks(make.report(make.test("t.py::test_a", *found)))
        assert sum("<- cut here" in line for line in lines) == 1
        assert lines.count("  held by  as above") == 7

    def test_what_differs_is_told(self, make: Any) -> None:
        (array,) = make.finding().tensors
        larger = dataclasses.replace(array, shape=(1024, 1024, 8))
        lines = self.leaks_of(make, tensors=(array, larger))
        assert "  held by  as above" not in lines  # the path ends at other tensors
        lines = self.leaks_of(make, autograd=Autograd(3, 1, 8))
        assert lines[-2:] == [
            "  held by  as above",
            "  graph    3 autograd nodes retain 1 saved tensor, 8 bytes, beyond these tensors",
        ]

    def test_another_holder_is_told(self, make: Any) -> None:
        other = dataclasses.replace(self.HOLDER, root="app.G", text="app.G['a'][0]")
        assert sum("<- cut here" in line for line in self.leaks_of(make, holder=other)) == 2
