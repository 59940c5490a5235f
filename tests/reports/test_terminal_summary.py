from __future__ import annotations

from typing import Any

import pytest

from pytest_gpuleak.reports.terminal import summary as terminal_summary


class TestSummary:
    def test_all_counts(self, make: Any) -> None:
        counts = {"leaked": 2, "fixtures_leaked": 1, "noted": 1, "allowed": 1, "unchecked": 3, "clean": 97}
        report = make.report(summary={**counts, "overhead_per_test_us": 21.4})
        assert terminal_summary.render_summary(report.summary) == (
            "gpu-leak: 2 leaked, 1 fixture leaked, 1 noted, 1 allowed, 3 unchecked, 97 clean; 21 us a clean test"
        )

    def test_leaking_fixtures_are_named(self) -> None:
        names = [f"f{index}" for index in range(7)]
        assert terminal_summary.render_summary({"fixtures_leaked": 7, "leaking_fixtures": names}) == (
            "gpu-leak: 0 leaked, 7 fixtures leaked ('f0', 'f1', 'f2', 'f3', 'f4', 2 more), 0 clean"
        )

    @pytest.mark.parametrize(
        ("cost", "text"),
        [(21.4, "; 21 us a clean test"), (4321.0, "; 4.3 ms a clean test"), (None, ""), (float("nan"), "")],
    )
    def test_one_line_where_nothing_leaked(self, make: Any, cost: float | None, text: str) -> None:
        report = make.report(summary={"clean": 5, "overhead_per_test_us": cost})
        assert terminal_summary.render_summary(report.summary) == f"gpu-leak: 0 leaked, 5 clean{text}"

    def test_the_price_of_suspects(self) -> None:
        suspects = {"tests": 20, "check_s": 1.42, "reruns_s": 0.91, "search_s": 0.35}
        counts = {"noted": 20, "clean": 7, "overhead_per_test_us": 155.0, "suspects": suspects}
        assert terminal_summary.render_summary(counts) == (
            "gpu-leak: 0 leaked, 20 noted, 7 clean; 155 us a clean test; 20 suspects took 1.4 s (re-runs 0.9, search 0.3)"
        )

    def test_the_dearest_suspects(self, make: Any) -> None:
        dearest = [{"nodeid": "test_it.py::test_slow", "check_s": 1.42, "reruns_s": 0.91, "search_s": 0.36}]
        report = make.report(summary={"dearest": dearest})
        assert terminal_summary.render_dearest(report, width=80) == [
            "gpu-leak: the suspects that took longest to check",
            "       1.4 s  re-runs 0.9, search 0.4  test_it.py::test_slow",
        ]
        assert terminal_summary.render_dearest(make.report(), width=80) == []

    def test_a_lost_device(self) -> None:
        entry = {
            "device": "cuda:0", "error": "CUDA error: device-side assert triggered", "nodeid": "tests/test_a.py::test_x",
            "moment": "during", "last_answered": "tests/test_a.py::test_w\n", "worker": "main",
        }  # fmt: skip
        counts = {"lost_devices": [entry, {**entry, "moment": "before", "last_answered": None, "worker": "gw1"}]}
        during, before = terminal_summary.render_lost_devices(counts)
        assert during == (
            "gpu-leak: cuda:0 stopped answering during tests/test_a.py::test_x (CUDA error: device-side assert triggered); "
            "last test after which it answered: tests/test_a.py::test_w\\n; later tests are not checked"
        )
        assert before == (
            "gpu-leak: cuda:0 stopped answering before tests/test_a.py::test_x (CUDA error: device-side assert triggered); "
            "no earlier test had used it; later tests of gw1 are not checked"
        )
        assert terminal_summary.render_lost_devices({}) == []

    def test_no_tests(self, make: Any) -> None:
        assert terminal_summary.render_summary({}) == "gpu-leak: 0 leaked, 0 clean"
