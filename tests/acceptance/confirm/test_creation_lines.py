"""The line that created what was left behind, where torch made it: gradients, other threads, fixtures, optimizers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Run, Runner

pytestmark = [pytest.mark.torch, pytest.mark.interpreter, pytest.mark.usefixtures("forked")]


@pytest.fixture(autouse=True)
def torch() -> None:
    pytest.importorskip("torch")


def lines(found: Run, name: str) -> dict[str, set[str | None]]:
    """For each holder's root the creating lines of its tensors."""
    told: dict[str, set[str | None]] = {}
    for finding in found.tests[name]["findings"]:
        for tensor in finding["tensors"]:
            code = tensor["created"] and tensor["created"]["code"]
            told.setdefault(finding["holder"]["root"], set()).add(code)
    return told


def test_lines_of_what_torch_makes_itself(run: Runner) -> None:
    """What a known culprit holds, as all of this, is not searched for again, yet its line is the test's own."""
    found = run(
        """
        import threading
        from concurrent.futures import ThreadPoolExecutor
        import pytest, torch
        from torch import nn
        from torch.utils.data import DataLoader, TensorDataset

        KEPT = []
        MODEL = nn.Linear(512, 512)

        def make():
            return torch.ones(64)

        def test_gradient():
            weight = torch.ones(32, requires_grad=True)
            loss = (weight * 2).sum()
            loss.backward()
            KEPT.append(weight.grad)

        def test_gradients_left_on_a_shared_model():
            MODEL(torch.ones(4, 512)).sum().backward()
            assert MODEL.weight.grad is not None

        def test_gradients_of_a_model():
            model = nn.Linear(8, 8)
            model(torch.ones(4, 8)).sum().backward()
            assert all(parameter.grad is not None for parameter in model.parameters())
            KEPT.append(model)

        def test_autograd_grad():
            weight = torch.ones(32, requires_grad=True)
            KEPT.append(torch.autograd.grad((weight * 2).sum(), weight)[0])

        def test_thread():
            def work():
                KEPT.append(torch.zeros(100))

            thread = threading.Thread(target=work)
            thread.start()
            thread.join()

        def test_pool():
            with ThreadPoolExecutor(2) as pool:
                KEPT.extend(pool.map(lambda i: torch.full((10,), i), range(4)))

        def test_thread_of_a_thread():
            def inner():
                KEPT.append(make())

            def outer():
                thread = threading.Thread(target=inner)
                thread.start()
                thread.join()

            thread = threading.Thread(target=outer)
            thread.start()
            thread.join()

        def test_thread_class():
            class Worker(threading.Thread):
                def run(self):
                    KEPT.append(torch.eye(5))

            worker = Worker()
            worker.start()
            worker.join()

        @pytest.fixture
        def batch():
            return torch.randn(16)

        def test_fixture(batch):
            KEPT.append(batch)

        def test_loader():
            loader = DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=4, num_workers=0)
            for (batch,) in loader:
                KEPT.append(batch)

        def test_numpy():
            KEPT.append(torch.from_numpy(torch.ones(3).numpy() + 1))

        # Last, since it imports the compiler: every search after it walks 120,000 objects more.
        def test_optimizer():
            model = nn.Linear(8, 8)
            optimizer = torch.optim.Adam(model.parameters())
            model(torch.ones(4, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            KEPT.append(optimizer.state_dict()["state"])
        """,
        apart=True,
    )
    kept = {name: lines(found, name).get("test_it.KEPT") for name in found.tests}
    assert kept["test_gradient"] == {"loss.backward()"}
    assert lines(found, "test_gradients_left_on_a_shared_model") == {
        "test_it.MODEL": {"MODEL(torch.ones(4, 512)).sum().backward()"}
    }
    assert kept["test_gradients_of_a_model"] == {
        "model = nn.Linear(8, 8)",
        "model(torch.ones(4, 8)).sum().backward()",
    }
    assert kept["test_autograd_grad"] == {"KEPT.append(torch.autograd.grad((weight * 2).sum(), weight)[0])"}
    assert kept["test_thread"] == {"KEPT.append(torch.zeros(100))"}
    assert kept["test_pool"] == {"KEPT.extend(pool.map(lambda i: torch.full((10,), i), range(4)))"}
    assert kept["test_thread_of_a_thread"] == {"return torch.ones(64)"}
    assert kept["test_thread_class"] == {"KEPT.append(torch.eye(5))"}
    assert kept["test_fixture"] == {"return torch.randn(16)"}
    assert kept["test_loader"] == {"for (batch,) in loader:"}
    assert kept["test_optimizer"] == {"optimizer.step()"}


def test_a_profiler_of_the_users_stays_in_force(run: Runner) -> None:
    found = run(
        """
        import sys, threading
        import torch
        KEPT, SEEN = [], {"thread": [], "here": []}

        def work():
            KEPT.append(torch.ones(10))

        def in_thread(frame, event, argument):
            if event == "call":
                SEEN["thread"].append(frame.f_code.co_name)

        def here(frame, event, argument):
            if event == "call":
                SEEN["here"].append(frame.f_code.co_name)

        def start():
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()

        def test_set_before_the_test(request):
            assert threading.getprofile() is in_thread or not SEEN["thread"]
            start()

        def setup_module():
            threading.setprofile(in_thread)

        def test_of_the_thread_module():
            SEEN["thread"].clear()
            start()
            assert "work" in SEEN["thread"]

        def test_set_in_the_test():
            SEEN["thread"].clear()
            threading.setprofile(None)
            threading.setprofile(in_thread)
            start()
            assert "work" in SEEN["thread"]
            assert threading.getprofile() is in_thread

        def test_of_this_thread():
            SEEN["here"].clear()
            before = sys.getprofile()
            sys.setprofile(here)
            try:
                work()
            finally:
                sys.setprofile(before)
            assert "work" in SEEN["here"]

        def test_is_as_it_was():
            assert threading.getprofile() is in_thread
            assert sys.getprofile() is None

        def teardown_module():
            threading.setprofile(None)
        """,
        apart=True,
    )
    found.result.assert_outcomes(passed=5)
    assert found.verdicts["test_is_as_it_was"] == "clean"
    for name in ("test_of_the_thread_module", "test_set_in_the_test", "test_of_this_thread"):
        assert found.verdicts[name] == "leaked"
    assert lines(found, "test_of_the_thread_module") == {"test_it.KEPT": {"KEPT.append(torch.ones(10))"}}


def test_a_thread_that_outlives_the_re_run(run: Runner) -> None:
    """Its mode has nothing to do any more once the re-run is over, and the thread goes on."""
    found = run(
        """
        import threading, queue
        import torch
        KEPT, THREADS = [], []

        def test_it():
            jobs = queue.Queue()

            def work():
                for job in iter(jobs.get, None):
                    KEPT.append(torch.ones(10))
                    jobs.task_done()

            thread = threading.Thread(target=work, daemon=True)
            thread.start()
            jobs.put(1)
            jobs.join()
            THREADS.append((thread, jobs))

        def test_afterwards():
            for thread, jobs in THREADS:
                jobs.put(2)
                jobs.join()
                jobs.put(None)
                thread.join()
            KEPT.clear()
        """,
        apart=True,
    )
    found.result.assert_outcomes(passed=2)
    assert lines(found, "test_it")["test_it.KEPT"] == {"KEPT.append(torch.ones(10))"}
    assert found.verdicts["test_afterwards"] == "clean"
