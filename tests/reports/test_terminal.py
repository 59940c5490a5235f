from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuleak.model.findings import Autograd, FindingKind, FixtureRecord, Holder, HolderKind, Origin, PathStep
from pytest_gpuleak.reports import wording
from pytest_gpuleak.reports.terminal import findings as terminal
from pytest_gpuleak.reports.terminal import lines as lines_module
from pytest_gpuleak.reports.terminal import section as terminal_section
from pytest_gpuleak.reports.terminal import short_summary
from pytest_gpuleak.reports.terminal.codes import render_codes
from pytest_gpuleak.reports.terminal.lines import CutLine, DimLine, TitleLine

if TYPE_CHECKING:
    from pytest_gpuleak.model.records import RunReport

GIB = 1024**3


def leaks(report: RunReport, verbosity: int = 0, width: int = 80) -> list[str]:
    return terminal_section.render_leaks(report, verbosity=verbosity, width=width)


class TestFinding:
    def test_the_first_three_lines_answer_what_who_and_where(self, make: Any) -> None:
        assert terminal.render_finding(make.finding()) == [
            "  growing: 1 tensor, 4.0 MiB on cuda:0; each run leaves 4.0 MiB more",
            "  held by  app.metrics.HISTORY[0]  (module global)",
            "  created  app/model.py:14 in forward: self.meter.update(y.detach())",
            "  tensor   float32 [1024, 1024], 4.0 MiB",
        ]

    def test_everything_known(self, make: Any) -> None:
        finding = make.finding(
            kind="unconfirmed",
            holder=Holder("cache", "app.load", "app.load.cache", (), "app/__init__.py", 7),
            autograd=Autograd(1, 3, GIB),
            known=True,
            hint="Keep loss.item() and not the loss: each loss keeps its whole graph alive, with all that it saved.",
            why_unconfirmed="the test took 70 s, over the limit of 60 s",
            other_holders=(Holder("module", "app.LAST", "app.LAST[0]"),),
        )
        assert terminal.render_finding(finding)[0] == (
            "  unconfirmed: 1 tensor, 4.0 MiB on cuda:0; left behind, not confirmed"
        )
        assert terminal.render_finding(finding)[1] == "  held by  app.load.cache  (cache, app/__init__.py:7)"
        assert terminal.render_finding(finding)[2:] == [
            "  and by   app.LAST[0]  (module global)",
            "  fix      Keep loss.item() and not the loss: each loss keeps its whole graph",
            "           alive, with all that it saved. (GL003)",
            "  created  app/model.py:14 in forward: self.meter.update(y.detach())",
            "  tensor   float32 [1024, 1024], 4.0 MiB",
            "  graph    1 autograd node retains 3 saved tensors, 1.0 GiB, beyond these",
            "           tensors",
            "  because  the test took 70 s, over the limit of 60 s",
            "  known    listed in the baseline",
        ]

    def test_a_fix_ends_in_its_code(self, make: Any) -> None:
        finding = make.finding(hint="Empty it in teardown.", code="GL\x1b701")
        assert r"  fix      Empty it in teardown. (GL\x1b701)" in terminal.render_finding(finding)
        assert "\nfix: Empty it in teardown. (GL\\x1b701)\n" in terminal.render_short(finding)

    def test_holders_that_read_the_same_are_counted(self, make: Any) -> None:
        cache = Holder("cache", "app.load", "app.load (cache key)[0].window")
        other = Holder("module", "app.LAST", "app.LAST[0]")
        lines = terminal.render_finding(make.finding(holder=cache, other_holders=(cache, cache)))
        assert lines.count("  held by  app.load (cache key)[0].window  (cache)") == 1
        assert [line for line in lines if "and by" in line] == ["  and by   2 further references of the same holder"]
        lines = terminal.render_finding(make.finding(holder=cache, other_holders=(other, cache, other)))
        assert [line for line in lines if "and by" in line] == [
            "  and by   app.LAST[0]  (module global)",
            "  and by   2 further references of the same holders",
        ]
        assert terminal.render_holders([cache, cache, other], None) == [
            "held by  app.load (cache key)[0].window  (cache)",
            "and by   app.LAST[0]  (module global)",
            "and by   1 further reference of the same holders",
        ]

    def test_nothing_known(self, make: Any) -> None:
        assert terminal.render_finding(make.finding(kind="retained", failed=False, tensors=(), holder=None)) == [
            "  retained (a note): 1 tensor, 4.0 MiB on cuda:0; left behind, does not grow",
            "  held by  unknown: it was freed before its holder was searched for",
            "  created  unknown: the line is recorded only while a test runs again",
        ]

    def test_a_cycle_has_no_holder_and_no_line_to_miss(self, make: Any) -> None:
        cycle = make.finding(kind="cycle", failed=False, tensors=(), holder=None)
        assert terminal.render_finding(cycle) == [
            "  cycle (a note): 1 tensor, 4.0 MiB on cuda:0; held until the garbage collector",
            "    ran",
            "  cycle    unknown: it was freed before it could be read, goes through C++, or",
            "           the search ran out of time",
        ]
        for text in (terminal.render_short(cycle), terminal.render_line(cycle)):
            assert text == "cycle (a note): 1 tensor, 4.0 MiB on cuda:0; held until the garbage collector ran"

    def test_a_long_chain_is_shortened_between_its_root_and_its_end(self, make: Any) -> None:
        text = "app.trainer.Trainer.registry" + "".join(f".child_{index}" for index in range(20)) + "['params'][1].grad"
        finding = make.finding(holder=Holder("class", "app.trainer.Trainer.registry", text))
        held, kind = terminal.render_finding(finding)[1:3]
        assert held.startswith("  held by  app.trainer.Trainer.registry.child_0")
        assert " ... " in held
        assert held.endswith("['params'][1].grad")
        assert len(held) <= 80
        assert kind == "           (class attribute)"

    def test_a_place_is_never_cut_and_its_code_moves_below(self, make: Any) -> None:
        origin = Origin("src/" * 20 + "model.py", 1400, "forward", "self.meter.update(" + "x, " * 40 + ")")
        tensors = tuple(dataclasses.replace(array, created=origin) for array in make.finding().tensors)
        place, code = terminal.render_finding(make.finding(tensors=tensors))[2:4]
        assert place == f"  created  {origin.file}:1400 in forward"
        assert code.startswith("           self.meter.update(x, x, ")
        assert len(code) == 80

    def test_further_lines_of_creation_are_counted_and_shown_with_v(self, make: Any) -> None:
        (array,) = make.finding().tensors
        other = dataclasses.replace(array, created=Origin("b.py", 1, "f", ""), storage_bytes=GIB)
        more = [dataclasses.replace(array, created=Origin("c.py", line, "f", "")) for line in (1, 2)]
        finding = make.finding(tensors=(array, array, other, *more))
        assert "           b.py:1 in f" in terminal.render_finding(finding)
        assert "           and 1 other line" in terminal.render_finding(finding)
        verbose = terminal.render_finding(finding, verbosity=1)
        assert "  created  b.py:1 in f" in verbose
        assert verbose[-1] == "  tensor   float32 [1024, 1024], 4.0 MiB of a storage of 1.0 GiB"

    def test_a_path_is_a_tree_with_the_reference_to_cut_marked(self, make: Any) -> None:
        path = (PathStep("['a']", "dict"), PathStep(" (a key)", "dict"), PathStep(".loss", "app.Record"))
        holder = Holder("module", "app.STATE", "app.STATE['a'] (a key).loss", path, "app.py", 3, deciding=2)
        lines = terminal.render_finding(make.finding(holder=holder))[1:5]
        assert lines == [
            "  held by  app.STATE  (module global, app.py:3)",
            "             ['a']: dict",
            "               (a key): app.Record",
            "                 .loss: float32 [1024, 1024]  <- cut here",
        ]
        assert [type(line) for line in lines] == [str, DimLine, DimLine, CutLine]
        placed = dataclasses.replace(holder, deciding=1, edit_file="app/trainer.py", edit_line=31)
        assert terminal.render_finding(make.finding(holder=placed))[3] == (
            "               (a key): app.Record  <- cut here, at app/trainer.py:31"
        )
        root = dataclasses.replace(holder, deciding=None)
        assert type(terminal.render_finding(make.finding(holder=root))[1]) is CutLine

    def test_a_root_without_a_name_is_told_with_what_it_leads_to(self, make: Any) -> None:
        path = (PathStep(".hook", "function"), PathStep(".x", "app.A"))
        native = Holder("native", "C++", "C++ -> function app.hook.hook.x", path)
        assert terminal.render_finding(make.finding(holder=native))[1] == (
            "  held by  C++ -> function app.hook  (no Python holder found)"
        )

    def test_the_place_of_the_reference_to_cut_is_never_cut(self, make: Any) -> None:
        path = (PathStep(f"['{'k' * 90}']", "dict"), PathStep(".x", "app.A"))
        holder = Holder("module", "app.S", "", path, "app.py", 3, 0, f"{'src/' * 8}app.py", 31)
        short, long = (
            terminal.render_finding(make.finding(holder=dataclasses.replace(holder, edit_file=file)))[2:4]
            for file in ("app.py", "src/" * 16 + "app.py")
        )
        assert short[1] == "               at app.py:31"
        assert long == [
            f"             ['{'k' * 16} ... {'k' * 22}']: app.A  <- cut here",
            f"               at {'src/' * 16}app.py:31",
        ]

    @pytest.mark.parametrize(
        ("verbosity", "shown", "rest"), [(0, 9, "... 16 references more ..."), (1, 30, "... 11 references more")]
    )
    def test_a_long_path_shows_its_ends_and_the_reference_to_cut(
        self, make: Any, verbosity: int, shown: int, rest: str
    ) -> None:
        path = tuple(PathStep(f"[{index}]", "list") for index in range(41))
        holder = Holder("module", "app.STATE", "", path, deciding=20)
        lines = terminal.render_finding(make.finding(holder=holder), verbosity=verbosity)
        steps = [line for line in lines if (line.strip().startswith("[") and "list" in line) or "[40]" in line]
        assert len(steps) == shown
        assert "[20]: list  <- cut here" in "".join(steps)
        assert steps[0].endswith("[0]: list")
        left = [line.strip() for line in lines if "references more" in line]
        assert sum(int(line.split()[1]) for line in left) == 41 - shown
        assert left[-1] == rest

    @pytest.mark.parametrize("kind", sorted(wording.KIND_WORDS))
    def test_every_kind_fits_a_line_of_80_columns(self, make: Any, kind: Any) -> None:
        finding = make.finding(kind=kind, count=12, bytes=123 * GIB, bytes_per_run=123 * 1024**2)
        assert len(terminal.render_amount(finding, width=80)) == 1

    def test_short_text_for_a_test_s_own_report(self, make: Any) -> None:
        assert terminal.render_short(make.finding()) == (
            "growing: 1 tensor, 4.0 MiB on cuda:0; each run leaves 4.0 MiB more\n"
            "held by app.metrics.HISTORY[0]  (module global)\n"
            "created app/model.py:14 in forward: self.meter.update(y.detach())"
        )
        unknown = make.finding(tensors=(), holder=None, why_line_unknown="a fixture is not run again")
        assert terminal.render_short(unknown).endswith(
            "held by unknown: it was freed before its holder was searched for\n"
            "created unknown: a fixture is not run again"
        )


class TestSection:
    def test_nothing_leaked_is_nothing_to_show(self, make: Any) -> None:
        note = make.finding(failed=False)
        assert leaks(make.report(make.test("t.py::test_clean"), make.test("t.py::test_noted", note))) == []

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

    def test_attempts_of_a_test_are_one_entry_with_their_sum(self, make: Any) -> None:
        report = make.report(*[make.test("t.py::test_one", make.finding(holder=None)) for _ in range(3)])
        assert leaks(report)[0] == "LEAKED t.py::test_one"
        assert leaks(report)[-1] == "  in all   12.0 MiB in 3 findings"

    def test_a_note_is_not_added_to_what_fails(self, make: Any) -> None:
        report = make.report(
            make.test("t.py::test_one", make.finding()), make.test("t.py::test_two", make.finding(failed=False))
        )
        assert not any("in all" in line or "2 tests" in line for line in leaks(report, verbosity=1))

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


def test_every_kind_and_holder_has_words() -> None:
    assert set(wording.KIND_WORDS) == set(get_args(FindingKind))
    assert set(wording.HOLDER_WORDS) == set(get_args(HolderKind))


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

    def test_many_codes_are_cut(self, make: Any) -> None:
        findings = [make.finding(code=f"GL{number}", bytes=number) for number in range(900, 1000)]
        (line,) = render_codes(make.report(make.test("t.py::test_one", *findings)))
        assert line.endswith("explain GL999 GL998 GL997 GL996 GL995 GL994")
