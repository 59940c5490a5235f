from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pytest_gpuleak.model.policy import Policy, Settings
from pytest_gpuleak.model.text import MIB
from pytest_gpuleak.session.config.markers import policy_of

RunPolicy = Callable[..., Any]


def policies(run: RunPolicy, pytester: pytest.Pytester, source: str, *arguments: str) -> dict[str, dict[str, Any]]:
    pytester.makepyfile(test_marked=f"import pytest\nMARK = pytest.mark.gpu_leak\n{source}")
    found: dict[str, dict[str, Any]] = run("--gpu-leak", "--strict-markers", *arguments).policies
    return found


def test_every_argument(run_policy: RunPolicy, pytester: pytest.Pytester) -> None:
    source = """
@MARK(tensors=2, mb="1.5", retained_mb="512KiB", host_mb=4, confirm=3, cycles="fail", scan="scan")
def test_one(): pass
"""
    assert policies(run_policy, pytester, source)["test_one"] == {
        "growing_tensors": 2,
        "growing_bytes": 3 * MIB // 2,
        "retained_bytes": 512 * 1024,
        "reserved_bytes": None,
        "host": ["heap"],
        "host_bytes": 4 * MIB,
        "array_bytes": 4 * MIB,
        "confirm": 3,
        "confirm_limit_s": 60.0,
        "cycles": "fail",
        "scan": "scan",
        "allowed": None,
        "process_bytes": None,
    }


def test_closest_wins_argument_by_argument(run_policy: RunPolicy, pytester: pytest.Pytester) -> None:
    source = """
pytestmark = MARK(confirm=2, cycles="fail", retained_mb=9)

@MARK(confirm=3, retained_mb=8)
class TestIt:
    @MARK(confirm=4)
    def test_one(self): pass

    def test_two(self): pass

def test_three(): pass

@pytest.mark.parametrize("x", [1, pytest.param(2, marks=MARK(confirm=6))])
@MARK(confirm=5)
def test_four(x): pass
"""
    found = policies(run_policy, pytester, source, "--gpu-leak-confirm=1", "--gpu-leak-cycles=ignore")
    assert {
        name: (policy["confirm"], policy["cycles"], policy["retained_bytes"] // MIB) for name, policy in found.items()
    } == {
        "test_one": (4, "fail", 8),
        "test_two": (3, "fail", 8),
        "test_three": (2, "fail", 9),
        "test_four[1]": (5, "fail", 9),
        "test_four[2]": (6, "fail", 9),
    }


@pytest.mark.parametrize(
    ("arguments", "marked", "growth"),
    [
        ([], "mb=2", (None, 2 * MIB)),
        ([], "tensors=2", (2, None)),
        (["--gpu-leak-mb=1"], "tensors=2", (2, MIB)),
        (["--gpu-leak-tensors=1"], "confirm=2", (1, None)),
        (["--gpu-leak-tensors=1"], "tensors=3", (3, None)),
        (["--gpu-leak-tensors=1"], "mb=3", (1, 3 * MIB)),
        ([], "confirm=2", (0, 0)),
    ],
)
def test_the_pair_is_read_from_all_places_together(
    run_policy: RunPolicy, pytester: pytest.Pytester, arguments: list[str], marked: str, growth: tuple[int, int]
) -> None:
    found = policies(run_policy, pytester, f"@MARK({marked})\ndef test_one(): pass", *arguments)["test_one"]
    assert (found["growing_tensors"], found["growing_bytes"]) == growth


def test_allowed_with_its_reason(run_policy: RunPolicy, pytester: pytest.Pytester) -> None:
    source = """
pytestmark = pytest.mark.allow_gpu_leak(reason="the module's")

@pytest.mark.allow_gpu_leak(reason="known upstream")
@MARK(confirm=2)
def test_one(): pass

def test_two(): pass
"""
    found = policies(run_policy, pytester, source)
    assert (found["test_one"]["allowed"], found["test_one"]["confirm"]) == ("known upstream", 2)
    assert (found["test_two"]["allowed"], found["test_two"]["confirm"]) == ("the module's", 1)


def test_policy_of_a_module_is_its_markers(pytester: pytest.Pytester) -> None:
    (item,) = pytester.getitems("import pytest\npytestmark = pytest.mark.gpu_leak(confirm=4)\ndef test_one(): pass")
    assert item.parent is not None
    assert policy_of(item.parent, Settings(True, Policy())).confirm == 4


def test_without_a_marker_the_run_s_own_policy_is_handed_out(pytester: pytest.Pytester) -> None:
    settings = Settings(True, Policy(confirm=7))
    assert policy_of(pytester.getitem("def test_func(): pass"), settings) is settings.policy


def test_a_bad_marker_added_while_tests_run_is_a_value_error(pytester: pytest.Pytester) -> None:
    item = pytester.getitem("def test_func(): pass")
    item.add_marker(pytest.mark.gpu_leak(confirm="often"))
    with pytest.raises(ValueError, match=r"pytest\.mark\.gpu_leak: confirm='often' is not accepted"):
        policy_of(item, Settings(True, Policy()))


def test_markers_are_declared(run_policy: RunPolicy) -> None:
    run_policy("--markers").result.stdout.fnmatch_lines(
        [
            (
                "@pytest.mark.gpu_leak(tensors=..., mb=..., retained_mb=..., host_mb=..., confirm=..., cycles=..., "
                "scan=...): *"
            ),
            "@pytest.mark.max_gpu_mb(mb, total=False, device=None, metric='allocated'): *",
            "@pytest.mark.max_host_mb(mb): *",
            "@pytest.mark.allow_gpu_leak(reason=...): *",
        ]
    )
