"""Who is named where one holder keeps the latest only and another one keeps all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Runner


SERVICE = """
    import pytest

    class Service:
        current = None

    class Engine:
        def __init__(self):
            self.weights = Buffer(64)

    @pytest.fixture(scope="module")
    def service():
        return Service()
"""

KEEPS_ALL = f"""{SERVICE}
    KEPT = []

    def test_fit(service):
        engine = Engine()
        service.current = engine
        KEPT.append({{"a": {{"b": {{"c": engine}}}}}})

    def test_service_is_there(service):
        assert service is not None
"""
"""A list keeps each engine, farther away than the fixture has the latest."""


def test_who_keeps_all_is_named_and_who_keeps_the_latest_adds_nothing(run: Runner) -> None:
    found = run(
        KEEPS_ALL
        + """
    @pytest.fixture(scope="module")
    def other_service():
        return Service()

    def test_fit_alone(other_service):
        other_service.current = Engine()

    def test_other_service_is_there(other_service):
        assert other_service is not None

    MODEL, WINDOWS = [], []

    def test_small_cache_beside_a_large_leak():
        if not MODEL:
            MODEL.append(Buffer(4 * 2**20))
            WINDOWS.append(Buffer(4096))
    """
    )
    finding = found.finding("test_fit")
    assert (finding["kind"], finding["holder"]["text"]) == ("growing", "test_it.KEPT[0]['a']['b']['c'].weights")
    assert (found.verdicts["test_fit_alone"], found.verdicts["test_other_service_is_there"]) == ("noted", "clean")
    findings = found.tests["test_small_cache_beside_a_large_leak"]["findings"]
    failed = {one["holder"]["root"].rpartition(".")[2]: one["failed"] for one in findings}
    assert failed == {"MODEL": True, "WINDOWS": False}
    found.result.stdout.no_fnmatch_line("*WINDOWS*")


@pytest.mark.torch
def test_a_list_that_is_farther_away_than_the_latest_user_is_named_with_torch(run: Runner) -> None:
    # What the re-run may change in shared models was noted: each object on the way has a dict then, one more reference.
    pytest.importorskip("torch", reason="torch is not installed")
    found = run(KEEPS_ALL.replace("import pytest", "import pytest, torch").replace("Buffer(64)", "torch.zeros(64)"))
    finding = found.finding("test_fit")
    assert (finding["kind"], finding["holder"]["root"]) == ("growing", "test_it.KEPT")
