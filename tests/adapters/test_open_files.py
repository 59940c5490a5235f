"""Files that `safetensors.safe_open` keeps mapped: each run that leaves another one open leaks."""

from __future__ import annotations

import importlib
import pathlib
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak.adapters.safetensors import file_class, mapped_files, opened_count

if TYPE_CHECKING:
    from tests.conftest import Runner

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone lists a process's maps")

STAND_IN = """
    import mmap

    class safe_open:
        def __init__(self, path, framework):
            with open(path, "rb") as file:
                self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

        def __enter__(self):
            return self

        def __exit__(self, *error):
            self.map.close()
"""
"""Maps a file as the original does."""

SUITE = """
    import json, pathlib, struct

    import pytest
    from safetensors import safe_open

    HANDLES, ONCE, LOADERS = [], {}, []

    class Loader:
        def __init__(self, path):
            self.file = safe_open(path, framework="numpy")

    @pytest.fixture(scope="session")
    def path(tmp_path_factory):
        path = tmp_path_factory.mktemp("models") / "model.safetensors"
        header = json.dumps({"w": {"dtype": "U8", "shape": [4096], "data_offsets": [0, 4096]}}).encode()
        path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(4096))
        return path

    @pytest.fixture(scope="module")
    def shared(path):
        with safe_open(path, framework="numpy") as file:
            yield file

    def test_kept(path):
        HANDLES.append(safe_open(path, framework="numpy"))

    def test_kept_by_an_attribute(path):
        LOADERS.append(Loader(path))

    def test_closed(path):
        with safe_open(path, framework="numpy"):
            pass

    def test_dropped(path):
        safe_open(path, framework="numpy")

    def test_dropped_in_a_cycle(path):
        loader = Loader(path)
        loader.itself = loader

    def test_shared(shared):
        assert shared

    def test_kept_once(path):
        ONCE.setdefault("file", None) or ONCE.update(file=safe_open(path, framework="numpy"))
"""


def check(run: Runner) -> None:
    # In a process of its own: a walk over the heap of all tests takes longer than a search may.
    found = run(SUITE, apart=True)
    assert {name: test["verdict"] for name, test in found.tests.items()} == {
        "test_kept": "leaked",
        "test_kept_by_an_attribute": "leaked",
        "test_closed": "clean",
        "test_dropped": "clean",
        "test_dropped_in_a_cycle": "clean",
        "test_shared": "clean",
        "test_kept_once": "clean",
    }
    kept = found.finding("test_kept")
    assert (kept["kind"], kept["device"], kept["count"]) == ("growing", "disk", 1)
    assert pathlib.Path(kept["tensors"][0]["file"]).name == "model.safetensors"
    assert kept["holder"]["text"].startswith("test_it.HANDLES[")
    assert "with" in kept["hint"]
    assert found.finding("test_kept_by_an_attribute")["holder"]["text"].endswith(".file")


def test_open_files_are_named(run: Runner) -> None:
    pytest.importorskip("safetensors")
    check(run)


def imitate(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a package of the same shape in the place of safetensors."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "safetensors"]:
        monkeypatch.delitem(sys.modules, name)
    package = pytester.mkpydir("safetensors")
    (package / "__init__.py").write_text("from safetensors._safetensors_rust import safe_open\n")
    (package / "_safetensors_rust.py").write_text(textwrap.dedent(STAND_IN))


def test_a_stand_in_of_the_same_shape(run: Runner, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    imitate(pytester, monkeypatch)
    check(run)


def test_a_search_that_was_cut_hides_no_leak(
    run: Runner, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    imitate(pytester, monkeypatch)
    monkeypatch.setattr(importlib.import_module("pytest_gpuleak.engine.confirm.added"), "OPEN_FILES_STEPS", 0)
    found = run(SUITE)
    assert [name for name, test in found.tests.items() if test["verdict"] == "leaked"] == [
        "test_kept",
        "test_kept_by_an_attribute",
    ]
    kept = found.finding("test_kept")
    assert (kept["kind"], kept["device"], kept["count"]) == ("growing", "disk", 1)
    assert kept["holder"]["text"] == "unknown: the search for the open file met its limit of objects"


def test_without_safetensors_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "safetensors", raising=False)
    assert (file_class(), opened_count()) == (None, 0)
    monkeypatch.setattr("pytest_gpuleak.adapters.safetensors._MAPS", pathlib.Path("/nowhere"))
    assert mapped_files() == {}
