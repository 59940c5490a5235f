"""What is found, and what is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Runner

pytestmark = pytest.mark.newest

MODES = ["epoch", "scan"]


@pytest.mark.parametrize("mode", MODES)
def test_an_array_kept_in_a_list_is_a_leak(run: Runner, mode: str) -> None:
    found = run(
        """
        KEPT = []

        def test_leaks():
            KEPT.append(Buffer(4096))

        def test_clean():
            assert Buffer(10).memory.size == 10
        """,
        f"--gpu-leak-scan={mode}",
    )
    assert found.verdicts == {"test_leaks": "leaked", "test_clean": "clean"}
    finding = found.finding("test_leaks")
    assert (finding["kind"], finding["failed"], finding["count"], finding["bytes"]) == ("growing", True, 1, 4096)
    assert finding["bytes_per_run"] == 4096
    assert found.holder("test_leaks").startswith("test_it.KEPT[")
    assert finding["tensors"][0]["created"]["code"] == "KEPT.append(Buffer(4096))"
    assert found.result.ret == 1


def test_what_is_counted_and_whose_it_is(run: Runner) -> None:
    found = run(
        """
        import pytest
        KEPT, VIEWS, DEVICES, LEFT, RIGHT, OLD = [], [], [], [], {}, Buffer(5000)

        def test_leaks():
            KEPT.append(Buffer())

        def test_uses_what_another_left():
            assert KEPT[0].memory.size

        def test_drops_what_another_left():
            KEPT.clear()

        def test_views():
            whole = Buffer(1000)
            VIEWS.extend([whole, whole.view(), whole.view()])

        def test_view_of_older_memory():
            VIEWS.append(OLD.view())

        def test_two_devices():
            DEVICES.extend([Buffer(10, "gpu:0"), Buffer(20, "gpu:1")])

        def test_two_roots():
            LEFT.extend([Buffer(1), Buffer(2)])
            RIGHT[len(RIGHT)] = Buffer(3)

        @pytest.mark.xfail(strict=False)
        def test_unexpected_pass():
            KEPT.append(Buffer())

        @pytest.fixture
        def clean():
            yield Buffer()

        @pytest.fixture
        def leaky():
            KEPT.append(Buffer())
            return KEPT[-1]

        def test_clean_fixture(clean):
            assert clean

        def test_leaky_fixture(clean, leaky):
            assert leaky
        """
    )
    clean = ("uses_what_another_left", "drops_what_another_left", "clean_fixture")
    verdicts = dict.fromkeys(found.tests, "leaked") | dict.fromkeys((f"test_{name}" for name in clean), "clean")
    assert found.verdicts == verdicts
    assert (found.finding("test_views")["count"], found.finding("test_views")["bytes"]) == (1, 1000)
    finding = found.finding("test_view_of_older_memory")
    assert (finding["kind"], finding["count"], finding["bytes"]) == ("growing", 1, 0)
    assert finding["tensors"][0]["storage_bytes"] == 5000
    findings = found.tests["test_two_devices"]["findings"]
    assert {(finding["device"], finding["bytes"]) for finding in findings} == {("gpu:0", 10), ("gpu:1", 20)}
    findings = found.tests["test_two_roots"]["findings"]
    roots = {finding["holder"]["root"]: (finding["count"], finding["bytes"]) for finding in findings}
    assert roots == {"test_it.LEFT": (2, 3), "test_it.RIGHT": (1, 3)}
    assert found.tests["test_unexpected_pass"]["outcome"] == "xpassed"
    assert found.finding("test_leaky_fixture")["count"] == 1


def test_cycles_are_noted_and_fail_nothing_in_scan_mode(run: Runner) -> None:
    found = run(
        """
        class Node:
            pass

        def test_cycle():
            node = Node()
            node.itself, node.data = node, Buffer(2**22)

        def test_after():
            pass
        """,
        "--gpu-leak-scan=scan",
        apart=True,  # pytester's own records of hook calls would bring an automatic collection about
    )
    assert found.verdicts == {"test_cycle": "noted", "test_after": "clean"}
    finding = found.finding("test_cycle")
    assert (finding["kind"], finding["count"], finding["bytes"], finding["failed"]) == ("cycle", 1, 2**22, False)
    assert found.result.ret == 0


def test_the_policy_on_cycles(run: Runner) -> None:
    found = run(
        """
        import pytest

        def make():
            loop = [Buffer()]
            loop.append(loop)

        def test_option():
            make()

        @pytest.mark.gpu_leak(cycles="note")
        def test_note():
            make()

        @pytest.mark.gpu_leak(cycles="ignore")
        def test_ignore():
            make()
        """,
        "--gpu-leak-cycles=fail",
        apart=True,
    )
    assert found.verdicts == {"test_option": "leaked", "test_note": "noted", "test_ignore": "clean"}


@pytest.mark.parametrize("mode", MODES)
def test_a_test_that_does_not_pass_is_not_checked(run: Runner, mode: str) -> None:
    endings = {
        "failed": "assert not big",
        "skipped": "pytest.skip('no')",
        "xfailed": "pytest.xfail('known')",
        "error": "",
    }
    found = run(
        """
        import pytest

        @pytest.fixture
        def broken(request):
            held = Buffer(2**22)
            if request.node.name == "test_error":
                raise ValueError
        """
        + "".join(
            f"""
        def test_{outcome}(broken):
            big = Buffer(2**22)
            {ending}

        def test_next_of_{outcome}():
            pass
        """
            for outcome, ending in endings.items()
        ),
        f"--gpu-leak-scan={mode}",
    )
    for outcome in endings:
        test = found.tests[f"test_{outcome}"]
        assert (test["verdict"], test["outcome"], bool(test["why_unchecked"])) == ("unchecked", outcome, True)
        assert found.verdicts[f"test_next_of_{outcome}"] == "clean"


def test_log_records_with_arrays_are_no_leak(run: Runner) -> None:
    found = run(
        """
        import logging, pytest

        @pytest.fixture
        def noisy():
            yield
            logging.getLogger().warning("down %s", Buffer(2**22))

        def test_logs(noisy, caplog):
            logging.getLogger().warning("up %s", Buffer(2**22))
            assert len(caplog.records) == 1
        """,
        apart=True,  # an outer run's handlers would keep the records too
    )
    assert found.verdicts == {"test_logs": "clean"}
