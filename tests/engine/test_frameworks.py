"""A framework is one folder and one row: what the plugin asks of torch, it asks of any framework in the registry."""

from __future__ import annotations

import ast
import pathlib
import re
import types
from typing import TYPE_CHECKING

import pytest

import pytest_gpuleak
from pytest_gpuleak.adapters import registry
from pytest_gpuleak.adapters.nvml.readings import framework_uuids
from pytest_gpuleak.adapters.processes.kinds import helper_pids, is_helper, pool_workers
from pytest_gpuleak.adapters.protocol import Framework
from pytest_gpuleak.adapters.torch.framework import TorchFramework
from pytest_gpuleak.heap.budget import Budget
from pytest_gpuleak.session.records.run_records import environment
from tests.support.standin import StandInArrays

if TYPE_CHECKING:
    from collections.abc import Iterator


PACKAGE = pathlib.Path(pytest_gpuleak.__file__).parent
NAMES_LIBRARIES = {
    "adapters/registry.py",  # the row
    "explain/edge_to_edit.py",  # a list of libraries, jax and tensorflow among them
    "session/features/out_of_memory.py",  # a list of libraries' errors
    "baseline/peaks.py", "cli/peaks.py", "session/features/peaks/ratchet.py",  # a file of peaks has torch's version
}  # fmt: skip
SPEAKS_TO_THE_USER = ("explain/hints/", "reports/")
NAMED = re.compile(r"torch(\.[\w.\\]*)?|\(inside \(torch.*|pytest_gpuleak\.adapters\.torch.*")


def strings_of(tree: ast.AST) -> Iterator[str]:
    """The texts in code that are no docstrings, and the modules that it imports."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.slow
def test_torch_is_named_in_its_folder_alone() -> None:
    found = set()
    for path in PACKAGE.rglob("*.py"):
        place = path.relative_to(PACKAGE).as_posix()
        if not place.startswith(("adapters/torch/", *SPEAKS_TO_THE_USER)):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            found |= {place for text in strings_of(tree) if NAMED.fullmatch(text.strip())}
    assert found == NAMES_LIBRARIES


class Workers:
    """Processes that a framework starts for itself."""

    def is_helper(self, command: object) -> bool:
        return command == ["toy-compiler"]

    def helper_pids(self) -> set[int]:
        return {7}

    def pool_workers(self) -> dict[int, str]:
        return {8: "ToyLoader"}


class Toy(Framework):
    """A second framework."""

    name = package = "toy"
    arrays = StandInArrays()
    processes = Workers()

    def version(self) -> str:
        return "1.2"

    def device_names(self) -> list[str]:
        return ["toy:0 Toy"]

    def nvidia_uuids(self) -> list[str]:
        return ["22"]

    def parts_layout(self) -> types.SimpleNamespace:
        return types.SimpleNamespace(mark=" (toy.Module)")


@pytest.fixture(autouse=True)
def row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "FRAMEWORKS", (TorchFramework, Toy))


def test_a_row_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TorchFramework, "nvidia_uuids", lambda self: None)
    frameworks = registry.own_frameworks()
    assert [arrays.name for arrays in frameworks.arrays] == ["torch", "torch storages", "standin"]
    assert [arrays.name for arrays in frameworks.storages] == ["torch storages"]
    assert registry.own_packages() == ("torch.", "toy.")
    assert [layout.mark for layout in registry.own_layouts()] == [" (torch.nn.Module)", " (toy.Module)"]
    assert is_helper(["toy-compiler"])
    assert 7 in helper_pids()
    assert pool_workers([8]) == {8: "ToyLoader"}
    said = environment()
    assert said["toy"] == "1.2"
    assert "toy:0 Toy" in said["devices"]
    assert framework_uuids() == ["22"]


def test_a_framework_has_what_it_does_not_override() -> None:
    framework = Toy()
    assert (framework.broken, framework.devices, framework.allocation_history()) == ("", None, None)
    assert [*framework.settle_steps(), *framework.reference_finders(), *framework.keep_states()] == []
    assert (
        framework.unread_arrays({"toy:0"}),
        framework.graph_size([], Budget(1)),
        framework.device_space("toy:0"),
    ) == (
        {},
        None,
        None,
    )
    assert (framework.release_cache({"toy"}), framework.is_distributed()) == ([], False)
    with framework.in_place():
        pass
