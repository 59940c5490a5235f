"""Whether this process is one rank of several, told without a call of torch's Python."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.adapters.torch.framework import TorchFramework

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import Runner

pytestmark = [pytest.mark.torch, pytest.mark.interpreter]

C10D = "torch.distributed.distributed_c10d"

SUITE = """
    import pathlib, subprocess, sys
    import pytest, torch, torch.distributed as dist

    KEPT = []
    RANK = "\\n".join([
        "import sys, torch, torch.distributed as dist",
        "dist.init_process_group('gloo', rank=1, world_size=2, init_method='file://' + sys.argv[1])",
        "dist.all_reduce(torch.ones(1))",
        "dist.destroy_process_group()",
    ])

    @pytest.fixture
    def ranks(tmp_path):
        store = tmp_path / "store"
        other = subprocess.Popen([sys.executable, "-c", RANK, str(store)])
        dist.init_process_group("gloo", rank=0, world_size=2, init_method=f"file://{store}")
        yield
        dist.destroy_process_group()
        assert other.wait(60) == 0

    def test_ranks(ranks):
        with pathlib.Path("calls").open("a") as calls:
            calls.write("x")
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total == 2
        KEPT.append(total)

    def test_alone():
        KEPT.append(torch.ones(100))
"""


@pytest.fixture
def distributed() -> Any:
    found = pytest.importorskip("torch.distributed")
    if not found.is_available():
        pytest.skip("this torch has no torch.distributed")
    return found


@pytest.fixture
def alone(distributed: Any, tmp_path: Path) -> Iterator[None]:
    distributed.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{tmp_path / 'store'}")
    yield
    distributed.destroy_process_group()


@pytest.fixture
def fakes(distributed: Any) -> Iterator[None]:
    store = pytest.importorskip("torch.testing._internal.distributed.fake_pg").FakeStore()
    distributed.init_process_group("fake", rank=0, world_size=8, store=store)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("distributed")
def test_no_group() -> None:
    assert not TorchFramework().is_distributed()


@pytest.mark.usefixtures("alone")
def test_a_group_of_one_rank_waits_for_nobody(distributed: Any) -> None:
    assert distributed.is_initialized()
    assert not TorchFramework().is_distributed()


@pytest.mark.usefixtures("fakes")
def test_ranks_of_the_fake_backend_do_not_exist(distributed: Any) -> None:
    assert distributed.get_world_size() == 8
    assert not TorchFramework().is_distributed()


@pytest.mark.usefixtures("distributed")
@pytest.mark.parametrize(
    ("group", "several"), [(SimpleNamespace(size=lambda: 2), True), (SimpleNamespace(), True), (None, False)]
)
def test_other_ranks_are_told_from_the_group(monkeypatch: pytest.MonkeyPatch, group: object, *, several: bool) -> None:
    world = SimpleNamespace(_default_pg=group, pg_map=SimpleNamespace(get=lambda _: ("gloo", None)))
    monkeypatch.setattr(sys.modules[C10D], "_world", world)
    assert TorchFramework().is_distributed() is several


def test_what_stands_in_the_place_of_torchs_module_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, C10D, SimpleNamespace())  # as some tests do
    assert not TorchFramework().is_distributed()


@pytest.mark.usefixtures("distributed")
def test_a_rank_whose_group_a_fixture_destroys_is_not_run_again(run: Runner, pytester: pytest.Pytester) -> None:
    """Lightning's launcher runs all of pytest once for each rank: after a re-run of one, they wait in different tests."""
    found = run(SUITE, "-p", "no:randomly")
    assert (pytester.path / "calls").read_text() == "x"
    assert "one rank of several" in found.finding("test_ranks")["why_unconfirmed"]
    assert found.finding("test_alone")["kind"] == "growing"
