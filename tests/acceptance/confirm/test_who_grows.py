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


@pytest.mark.parametrize("options", [[], ["--gpu-leak-scan=scan"]])
def test_what_is_replaced_by_a_larger_one_in_each_run_grows(run: Runner, options: list[str]) -> None:
    """The last test of a file runs twice where a fixture is set up again; what takes turns or draws its size does not grow."""
    found = run(
        """
        import itertools, random, secrets

        SEEN, TURNS = {"sum": Buffer(10)}, itertools.cycle([100, 300])

        class State:
            log = Buffer(5)

        def test_joins():
            SEEN["sum"] = Buffer(SEEN["sum"].memory.size + 30)

        def test_turns():
            SEEN["turns"] = Buffer(next(TURNS))

        def test_draws():
            SEEN["drawn"] = Buffer(random.randrange(1, 10**6))

        def test_draws_secretly():
            SEEN["secret"] = Buffer(1 + secrets.randbelow(10**6))

        def test_joins_two():
            State.log = Buffer(State.log.memory.size + 7)
            SEEN["last"] = Buffer(SEEN["last"].memory.size + 500 if "last" in SEEN else 500)
        """,
        *options,
        apart=True,
    )
    clean = ("test_turns", "test_draws", "test_draws_secretly")
    assert found.verdicts == dict.fromkeys(("test_joins", "test_joins_two"), "leaked") | dict.fromkeys(clean, "noted")
    joined = found.finding("test_joins")
    assert (joined["kind"], joined["bytes_per_run"], joined["holder"]["text"]) == ("growing", 30, "test_it.SEEN['sum']")
    two = {one["bytes_per_run"]: one["holder"]["text"] for one in found.tests["test_joins_two"]["findings"]}
    assert two == {7: "test_it.State.log", 500: "test_it.SEEN['last']"}
    assert "puts a larger array into `test_it.State.log`" in str(found.tests["test_joins_two"])
