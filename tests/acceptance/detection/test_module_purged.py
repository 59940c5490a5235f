"""Tests that take torch, numpy or a dependency of the plugin's out of `sys.modules`, as tests of optional imports do.

Each run is in a process of its own: where something goes wrong here, the interpreter ends.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Runner


PURGE = """
    import sys

    KEPT = []

    def purge(package):
        for name in [name for name in sys.modules if name.partition(".")[0] == package]:
            del sys.modules[name]
"""


@pytest.mark.torch
@pytest.mark.usefixtures("forked")
def test_torch_is_removed_for_good(run: Runner) -> None:
    found = run(
        textwrap.dedent(PURGE)
        + textwrap.dedent(
            """
            import torch

            def test_before():
                KEPT.append(torch.ones(64, 64))

            def test_purges():
                purge("torch")
                KEPT.append(torch.ones(64, 64) + 1)

            def test_after():
                KEPT.append(torch.ones(64, 64) + 2)

            def test_graph():
                KEPT.append((torch.ones(8, requires_grad=True) * 2).sum())

            def test_clean():
                assert torch.ones(3).sum() == 3

            def test_still_gone():
                assert not [name for name in sys.modules if name.partition(".")[0] == "torch"]
            """
        ),
        apart=True,
    )
    assert found.verdicts == {
        "test_before": "leaked",
        "test_purges": "leaked",
        "test_after": "leaked",
        "test_graph": "leaked",
        "test_clean": "clean",
        "test_still_gone": "clean",
    }
    assert {found.finding(name)["kind"] for name in ("test_before", "test_purges", "test_after")} == {"growing"}
    assert found.holder("test_after") == "test_it.KEPT[6]"  # each test before has run three times
    assert found.finding("test_after")["tensors"][0]["created"]["code"] == "KEPT.append(torch.ones(64, 64) + 2)"
    assert found.finding("test_graph")["autograd"]["nodes"] > 0
    found.result.assert_outcomes(passed=6)


@pytest.mark.torch
def test_torch_comes_and_goes_within_one_test(run: Runner) -> None:
    found = run(
        """
        import sys
        from unittest import mock

        KEPT, TORCH = [], []

        def test_before():
            assert "torch" not in sys.modules

        def test_imports_it_for_a_moment():
            with mock.patch.dict(sys.modules):
                import torch

                TORCH.append(torch)
                KEPT.append(torch.ones(64, 64))

        def test_after():
            assert "torch" not in sys.modules
            KEPT.append(TORCH[0].ones(64, 64))

        def test_clean():
            assert TORCH[0].ones(3).sum() == 3
        """,
        apart=True,
    )
    assert found.verdicts == {
        "test_before": "clean",
        "test_imports_it_for_a_moment": "leaked",
        "test_after": "noted",
        "test_clean": "clean",
    }
    # It is run again with torch in its place, for the case that it imports it, and then fails: judged by its size.
    assert found.finding("test_after")["kind"] == "unconfirmed"
    found.result.assert_outcomes(passed=4)


@pytest.mark.torch
@pytest.mark.usefixtures("forked")
def test_something_else_stands_for_torch(run: Runner) -> None:
    found = run(
        """
        import sys
        from unittest import mock

        import torch

        KEPT = []

        def test_none(monkeypatch):
            monkeypatch.setitem(sys.modules, "torch", None)
            KEPT.append(torch.ones(64, 64))

        def test_none_for_good():
            sys.modules["torch"] = None
            KEPT.append(torch.ones(64, 64))

        def test_after_none():
            KEPT.append(torch.ones(64, 64))

        def test_mock_for_good():
            sys.modules["torch"] = mock.MagicMock()
            KEPT.append(torch.ones(64, 64))

        def test_after_mock():
            KEPT.append(torch.ones(64, 64))

        def test_mock_is_used():
            import torch as mocked

            mocked.ones(3)
            mocked.ones.assert_called_once_with(3)
            assert len(mocked.mock_calls) == 1
        """,
        apart=True,
    )
    leaks = ("test_none", "test_none_for_good", "test_after_none", "test_mock_for_good", "test_after_mock")
    assert found.verdicts == {**dict.fromkeys(leaks, "leaked"), "test_mock_is_used": "clean"}
    assert {found.finding(name)["kind"] for name in leaks} == {"growing"}


@pytest.mark.usefixtures("cold")
def test_stubs_for_the_whole_session(run: Runner) -> None:
    """Neither a mock of torch nor those of the plugin's own dependencies are asked anything."""
    found = run(
        """
        import subprocess, sys, types
        from unittest import mock

        NAMES = ("torch", "torch.cuda", "torch.distributed", "pynvml", "psutil", "numpy")
        for name in NAMES:
            sys.modules[name] = mock.MagicMock(name=name)
        sys.modules["torch._C"] = types.ModuleType("torch._C")
        KEPT = []

        def test_leaks():
            KEPT.append(Buffer(4096))

        def test_a_module_made_by_hand(monkeypatch):
            module = types.ModuleType("torch")
            module.Tensor = type("Tensor", (), {})
            module.cuda = mock.MagicMock()
            monkeypatch.setitem(sys.modules, "torch", module)

        def test_child():
            KEPT.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]))

        def test_memory_runs_out():
            raise MemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8 GiB")

        def test_nobody_asked():
            calls = {name: sys.modules[name].mock_calls for name in NAMES}
            assert calls == dict.fromkeys(NAMES, []), calls
            KEPT[-1].kill()
            KEPT[-1].wait()
        """,
        apart=True,
    )
    assert found.verdicts == {
        "test_leaks": "leaked",
        "test_a_module_made_by_hand": "clean",
        "test_child": "leaked",
        "test_memory_runs_out": "unchecked",
        "test_nobody_asked": "clean",
    }
    assert found.finding("test_child")["kind"] == "process"


@pytest.mark.torch
@pytest.mark.usefixtures("forked")
def test_parts_of_torch_are_removed_and_reloaded(run: Runner) -> None:
    found = run(
        """
        import importlib, sys

        import torch
        import torch.distributed

        PARTS = ("torch.distributed", "torch.cuda", "torch.multiprocessing", "torch.autograd", "torch.jit")
        KEPT = []

        def test_removes_parts():
            for name in [name for name in sys.modules if name.startswith(PARTS)]:
                del sys.modules[name]
            KEPT.append(torch.ones(64, 64))

        def test_graph():
            KEPT.append((torch.ones(8, requires_grad=True) * 2).sum())

        def test_reloads():
            for module in (torch.nn, torch.storage, torch.cuda):
                importlib.reload(module) if module.__name__ in sys.modules else None
            KEPT.append(torch.nn.Linear(10, 10))

        def test_removes_the_extension():
            sys.modules.pop("torch._C")
            KEPT.append(torch.ones(64, 64))

        def test_after():
            KEPT.append(torch.ones(64, 64))

        def test_clean():
            assert torch.ones(3).sum() == 3
        """,
        apart=True,
    )
    verdicts = found.verdicts
    assert verdicts.pop("test_clean") == "clean"
    # What a test cannot do twice is judged by its size.
    assert verdicts.pop("test_removes_the_extension") in ("leaked", "noted")
    assert set(verdicts.values()) == {"leaked"}
    assert found.finding("test_graph")["autograd"]["nodes"] > 0


@pytest.mark.torch
@pytest.mark.usefixtures("forked")
def test_torch_is_imported_a_second_time(run: Runner) -> None:
    """torch fails, and leaves a heap that a walk may crash on: nothing is walked, and nothing called clean."""
    found = run(
        textwrap.dedent(PURGE)
        + textwrap.dedent(
            """
            import gc, pytest, torch

            @pytest.fixture(scope="module")
            def model():
                KEPT.append(torch.ones(64, 64))
                yield KEPT[-1]

            def test_before(model):
                KEPT.append(torch.ones(64, 64))

            def test_again():
                purge("torch")
                with pytest.raises(BaseException):
                    import torch
                    raise SystemError

            def test_collects():
                gc.collect()

            def test_leaks():
                KEPT.append(torch.ones(64, 64))
            """
        ),
        apart=True,
    )
    found.result.assert_outcomes(passed=4)
    assert found.result.ret == 1
    assert found.verdicts == {
        "test_before": "leaked",
        **dict.fromkeys(("test_again", "test_collects", "test_leaks"), "unchecked"),
    }
    reason = "torch was removed from sys.modules and imported a second time, which torch does not support"
    assert {found.tests[name]["why_unchecked"] for name in ("test_again", "test_collects", "test_leaks")} == {reason}
    found.result.stdout.fnmatch_lines([f"gpu-leak: {reason}: nothing was checked from test_it.py::test_again on"])


@pytest.mark.torch
@pytest.mark.usefixtures("forked")
def test_an_import_of_torch_that_fails_early_does_no_harm(run: Runner) -> None:
    found = run(
        """
        import importlib, os, sys

        import pytest, torch

        KEPT = []

        def test_top_alone():
            del sys.modules["torch"]
            with pytest.raises(RuntimeError):
                import torch as again
            KEPT.append(torch.ones(64, 64))

        def test_reload():
            sys.modules["torch"] = torch
            with pytest.raises(RuntimeError):
                importlib.reload(torch)
            KEPT.append(torch.ones(64, 64))

        def test_clean():
            assert torch.ones(3).sum() == 3

        def test_storage():
            KEPT.append(torch.ones(1024).untyped_storage())
        """,
        apart=True,
    )
    assert found.verdicts == {
        "test_top_alone": "leaked",
        "test_reload": "leaked",
        "test_clean": "clean",
        "test_storage": "leaked",
    }


@pytest.mark.torch
@pytest.mark.usefixtures("forked")
def test_numpy_is_removed(run: Runner) -> None:
    pytest.importorskip("numpy")
    found = run(
        textwrap.dedent(PURGE)
        + textwrap.dedent(
            """
            import numpy, torch

            RANDOM = numpy.random.RandomState(5)
            EXPECTED = numpy.random.RandomState(5).rand(4).tolist()

            def test_purges():
                RANDOM.rand()
                purge("numpy")
                KEPT.append(torch.ones(64, 64).numpy())

            def test_after():
                assert RANDOM.rand() == EXPECTED[1]
                KEPT.append(torch.ones(64, 64).numpy()[3:])

            def test_none():
                sys.modules["numpy"] = None
                assert RANDOM.rand() == EXPECTED[2]
                KEPT.append(torch.ones(64, 64).numpy()[3:])

            def test_clean():
                assert RANDOM.rand() == EXPECTED[3]
            """
        ),
        apart=True,
    )
    found.result.assert_outcomes(passed=4)
    # The re-run of a test that compares what it draws fails: judged by size.
    assert found.verdicts["test_purges"] == "leaked"
    assert found.holder("test_purges") == "test_it.KEPT[0].base"
    assert found.holder("test_after") == "test_it.KEPT[3].base.base"  # test_purges has run three times
    assert found.verdicts["test_clean"] == "clean"
