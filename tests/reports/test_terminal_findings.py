"""One finding on the terminal."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, get_args

import pytest

from pytest_gpuleak.model.findings import Autograd, Contribution, FindingKind, Holder, HolderKind, Judged, PathStep
from pytest_gpuleak.model.source_files import Origin
from pytest_gpuleak.reports import wording
from pytest_gpuleak.reports.terminal import findings as terminal
from pytest_gpuleak.reports.terminal import section as terminal_section

if TYPE_CHECKING:
    from pytest_gpuleak.model.records import RunReport

GIB = 1024**3


def leaks(report: RunReport, verbosity: int = 0, width: int = 80) -> list[str]:
    return terminal_section.render_leaks(report, verbosity=verbosity, width=width)


class TestFinding:
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

    def test_how_it_was_judged_is_shown_with_v(self, make: Any) -> None:
        finding = make.finding(judged=Judged(2, "7 everything new replaces something"))
        line = "  judged   7 everything new replaces something; 2 runs"
        assert terminal.render_finding(finding, verbosity=1)[-1] == line
        assert line not in terminal.render_finding(finding)
        collected = Judged(3, "10 sure from a settled state", ("a collection", "the settling"), cut="\x1b[2J")
        shown = terminal.render_finding(dataclasses.replace(finding, judged=collected), verbosity=1)
        assert shown[-2:] == [
            "  judged   10 sure from a settled state; 3 runs; freed by a collection, the",
            r"           settling; \x1b[2J",
        ]

    def test_what_was_not_done_is_told_once_with_v(self, make: Any) -> None:
        why = Judged(
            1, "", why_not_again="a rank", why_no_holder="C++ keeps it", why_no_line="nothing", search_cut="cut"
        )
        finding = make.finding(judged=why, holder=Holder("native", "C++", "C++"))
        shown = terminal.render_finding(finding, verbosity=1)
        assert shown[-4:] == [
            "  judged   1 run",
            "  not      run again: a rank",
            "  not      all of the heap searched: cut",
            "  not      known who holds it: C++ keeps it",
        ]
        assert not any(line.startswith("  not ") for line in terminal.render_finding(finding))
        unconfirmed = dataclasses.replace(finding, why_unconfirmed="a rank", holder=None, metric="heap")
        assert terminal.render_finding(unconfirmed, verbosity=1)[-3:] == [
            "  not      all of the heap searched: cut",
            "  not      known who holds it: C++ keeps it",
            "  not      known which line made it: nothing",
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

    def test_a_long_chain_is_wrapped_at_its_dots_and_nothing_of_it_is_cut(self, make: Any) -> None:
        text = "app.trainer.Trainer.registry" + "".join(f".child_{index}" for index in range(20)) + "['params'][1].grad"
        finding = make.finding(holder=Holder("class", "app.trainer.Trainer.registry", text))
        *held, kind = terminal.render_finding(finding)[1:6]
        assert held[0].startswith("  held by  app.trainer.Trainer.registry.child_0")
        assert "".join(line.removeprefix("  held by").strip() for line in held) == text
        assert all(len(line) <= 80 for line in held)
        assert kind == "           (class attribute)"

    def test_no_line_of_a_long_chain_begins_as_a_command_of_githubs(self, make: Any) -> None:
        text = "app.S" + "".join(f"[{index} ::error::z{'x' * 20}]" for index in range(9))
        lines = terminal.render_finding(make.finding(holder=Holder("module", "app.S", text)))
        assert len(lines) > 5
        assert not any(line.lstrip().startswith("::") for line in lines)

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

    def test_the_place_of_the_reference_to_cut_is_never_cut(self, make: Any) -> None:
        path = (PathStep(f"['{'k' * 90}']", "dict"), PathStep(".x", "app.A"))
        holder = Holder("module", "app.S", "", path, "app.py", 3, 0, f"{'src/' * 8}app.py", 31)
        short, long = (
            terminal.render_finding(make.finding(holder=dataclasses.replace(holder, edit_file=file)))[2:5]
            for file in ("app.py", "src/" * 16 + "app.py")
        )
        assert short[:2] == [
            f"             ['{'k' * 28} ... {'k' * 26}']:",
            "               app.A  <- cut here, at app.py:31",
        ]
        assert long[1:] == ["               app.A  <- cut here", f"               at {'src/' * 16}app.py:31"]

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
        known = Holder("module", "app.H", "app.H[0]", (), "app.py", 3, None, "app/loop.py", 40)
        lines = terminal.render_short(make.finding(holder=known, hint="Empty it.")).splitlines()
        assert lines[1:4] == [
            "held by app.H[0]  (module global, app.py:3)",
            "cut at app/loop.py:40",
            "fix: Empty it. (GL001)",
        ]
        host = make.finding(
            kind="host", metric="heap", device="cpu", holder=known, contributions=(Contribution("list", 5),)
        )
        assert terminal.render_short(host).splitlines()[1:] == [
            "held by app.H[0]  (module global, app.py:3)",
            "cut at app/loop.py:40",
            "5 bytes: list",
        ]
        unknown = make.finding(tensors=(), holder=None, why_line_unknown="a fixture is not run again")
        assert terminal.render_short(unknown).endswith(
            "held by unknown: it was freed before its holder was searched for\n"
            "created unknown: a fixture is not run again"
        )


def test_every_kind_and_holder_has_words() -> None:
    assert set(wording.KIND_WORDS) == set(get_args(FindingKind))
    assert set(wording.HOLDER_WORDS) == set(get_args(HolderKind))
