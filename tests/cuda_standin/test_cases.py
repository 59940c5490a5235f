"""What the plugin says of planted leaks on torch's CUDA build, over the stand-in runtime or on a device.

Run by `scripts/test-cuda`, which builds both, and by `scripts/check-gpu` on a machine with a device. Each case is a test
file in `cases/`, run in a process of its own.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ON_THE_STAND_IN = os.environ.get("CUDA_STANDIN") == "1"

needs_cuda_build = pytest.mark.skipif(
    not (ON_THE_STAND_IN or os.environ.get("GPULEAK_CASES_ON_DEVICE") == "1"),
    reason="needs torch's CUDA build, on the stand-in runtime or a device: run scripts/test-cuda or scripts/check-gpu",
)
pytestmark = [pytest.mark.slow, needs_cuda_build]
only_on_the_stand_in = pytest.mark.skipif(not ON_THE_STAND_IN, reason="a setting of the stand-in runtime")

CASES = Path(__file__).parent / "cases"
OFF = ("cacheprovider", "randomly", "hypothesispytest", "rerunfailures", "xdist")
"""Plugins that a case needs nothing of."""
LIMIT_S = 900
"""Seconds that a case may take. Most take 5, and many times that on a machine with other work."""
ALWAYS_AGAIN = f"--gpu-leak-confirm-limit={LIMIT_S}"
"""Has a suspect, and a test over its budget, run again however slow the machine is."""
VERDICTS = "GPULEAK_CASE_VERDICTS"
"""Names a file to which the verdicts of each case are added, one JSON object a line."""
OF_THE_OUTSIDE = ("CUDA_STANDIN_", "PYTORCH_", "PYTEST_", "GITHUB_", "GITLAB_", "CI")
"""Beginnings of variables that a case does not inherit: it states what it needs."""


@dataclasses.dataclass
class Ended:
    """What a run printed and reported."""

    text: str
    report: dict[str, Any]

    @property
    def tests(self) -> dict[str, dict[str, Any]]:
        """The records by the test's name; of several attempts the last."""
        return {test["nodeid"].partition("::")[2]: test for test in self.report["tests"]}

    @property
    def verdicts(self) -> dict[str, str]:
        """What each test that is not clean was said to be: `leaked: growing 64 B cuda:0`."""
        return {name: said_of(test) for name, test in self.tests.items() if said_of(test) != "clean"}


def said_of(test: dict[str, Any]) -> str:
    """Write a test's verdict and findings in a line."""
    findings = [
        " ".join(
            str(part) for part in (found["kind"], found["bytes"], "B", found["device"], found.get("metric")) if part
        )
        for found in test["findings"]
    ]
    return ": ".join(part for part in (test["verdict"], ", ".join(findings)) if part)


def run_case(folder: Path, name: str, *options: str, **environment: str) -> Ended:
    """Run a case under the plugin, in a copy apart from the `conftest.py` of these tests."""
    text = run_tests(folder, name, "--gpu-leak", "--gpu-leak-report=report.json", *options, **environment)
    path = folder / "report.json"
    assert path.exists(), text
    ended = Ended(text, json.loads(path.read_text("utf-8")))
    if os.environ.get(VERDICTS):
        settings = [*options, *(f"{key}={value}" for key, value in environment.items())]
        verdicts = {test: said_of(record) for test, record in ended.tests.items()}
        with Path(os.environ[VERDICTS]).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"case": " ".join([name, *settings]), "verdicts": verdicts}) + "\n")
    return ended


def run_tests(folder: Path, name: str, *options: str, **environment: str) -> str:
    """Run a case's copy, and return what it prints."""
    shutil.copy(CASES / f"{name}.py", folder)
    without = [part for plugin in OFF for part in ("-p", f"no:{plugin}")]
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(OF_THE_OUTSIDE)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *without, ALWAYS_AGAIN, *options, f"{name}.py"],
        cwd=folder,
        env={**inherited, "COLUMNS": "200", **environment},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return done.stdout + done.stderr


MIB = 1 << 20
RANDOM_STATE = "unattributed 16 B cuda:0 allocated"
"""What a kept graph leaves besides its pool: its random state, which torch allocates in C++ from 2.13 on, not yet in 2.11."""
BASICS = {
    "test_large_leak": f"leaked: growing {60 * MIB} B cuda:0",
    "test_small_leak": "leaked: growing 64 B cuda:0",
    "test_retained": f"leaked: retained {4 * MIB} B cuda:0",
}


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
        {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
        {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        pytest.param({"CUDA_STANDIN_LAZY": "1"}, marks=only_on_the_stand_in),
    ],
    ids=["default", "expandable_segments", "cudaMallocAsync", "no_caching", "lazy_events"],
)
def test_allocators(tmp_path: Path, environment: dict[str, str]) -> None:
    ended = run_case(tmp_path, "basics", **environment)
    assert ended.verdicts == BASICS


def keeps_random_state() -> bool:
    """Return whether this torch gives each graph a random state on the device."""
    major, minor = importlib.metadata.version("torch").split(".")[:2]
    return (int(major), int(minor)) >= (2, 13)


def test_record_stream(tmp_path: Path) -> None:
    assert run_case(tmp_path, "record_stream").verdicts == {}


@only_on_the_stand_in
def test_record_stream_with_lazy_events(tmp_path: Path) -> None:
    assert run_case(tmp_path, "record_stream", CUDA_STANDIN_LAZY="1").verdicts == {}


def test_record_stream_among_leaks(tmp_path: Path) -> None:
    assert run_case(tmp_path, "record_stream_among_leaks").verdicts == {
        "test_leaks": f"leaked: growing {60 * MIB} B cuda:0",
        "test_two": f"leaked: growing {MIB} B cuda:0",
    }


def test_leaks_while_requested_bytes_lag(tmp_path: Path) -> None:
    assert run_case(tmp_path, "lagging_requests").verdicts == {
        "test_fails_with_an_unread_gradient": "unchecked",
        "test_leaks_less_than_its_block": "leaked: growing 513 B cuda:0",
        "test_leaks_in_a_block_that_is_not_split": f"leaked: growing {3 * MIB} B cuda:0",
    }


def test_mixed(tmp_path: Path) -> None:
    ended = run_case(tmp_path, "mixed", CUDA_STANDIN_MIB="500")
    assert ended.verdicts == {
        "test_leaks": f"leaked: growing {60 * MIB} B cuda:0",
        "test_oom": "unchecked",
        "test_pinned_leak": f"leaked: growing {MIB} B cpu",
        "test_raw_driver_leak": f"leaked: unattributed {64 * MIB} B cuda:0 outside torch",
        "test_hidden_in_graph": f"leaked: growing {MIB + 4} B cuda:0",
    }


def test_growth_outside_torch_that_the_re_run_decides_on(tmp_path: Path) -> None:
    ended = run_case(tmp_path, "brief_outside")
    assert ended.verdicts == {"test_each_time": f"leaked: unattributed {64 * MIB} B cuda:0 outside torch"}


def test_cycle_at_the_first_use(tmp_path: Path) -> None:
    ended = run_case(tmp_path, "first_use_cycle", "--gpu-leak-cycles=fail")
    assert ended.verdicts == {"test_cycle": f"leaked: cycle {4 * MIB} B cuda:0"}


@pytest.mark.skipif(
    not ON_THE_STAND_IN and os.environ.get("GPULEAK_DEVICES", "1") == "1", reason="one device on this machine"
)
def test_two_devices(tmp_path: Path) -> None:
    ended = run_case(tmp_path, "two_devices", CUDA_STANDIN_DEVICES="2")
    both = f"growing {2 * MIB} B cuda:0, growing {2 * MIB} B cuda:1"
    assert ended.verdicts == {
        "test_leak_on_the_second": f"leaked: growing {5 * MIB} B cuda:1",
        "test_leak_on_both": f"leaked: {both}",
    }


def test_a_device_that_is_used_late(tmp_path: Path) -> None:
    assert run_case(tmp_path, "late_device").verdicts == {
        "test_leak_on_the_cpu": f"leaked: growing {4 * MIB} B cpu",
        "test_leak_on_the_device": f"leaked: growing {4 * MIB} B cuda:0",
    }


def test_the_first_use_leaks(tmp_path: Path) -> None:
    ended = run_case(tmp_path, "first_use_leaks", CUDA_STANDIN_CONTEXT_MIB="300")
    assert ended.verdicts == {"test_first_use_leaks": f"leaked: growing {4 * MIB} B cuda:0"}


def test_a_context_is_no_leak(tmp_path: Path) -> None:
    ended = run_case(tmp_path, "late_device", "-k", "cpu or first_use", CUDA_STANDIN_CONTEXT_MIB="300")
    assert ended.verdicts == {"test_leak_on_the_cpu": f"leaked: growing {4 * MIB} B cpu"}


def test_resets_by_the_tests(tmp_path: Path) -> None:
    ended = run_case(tmp_path, "resets")
    assert ended.verdicts == {
        "test_leak_before": f"leaked: growing {20 * MIB} B cuda:0",
        "test_reset_and_leak": f"leaked: growing {10 * MIB} B cuda:0",
    }
    assert {test["outcome"] for test in ended.tests.values()} == {"passed"}


def test_pools(tmp_path: Path) -> None:
    assert run_case(tmp_path, "pools").verdicts == {
        "test_tensor_of_a_kept_pool": f"leaked: growing {4 * MIB} B cuda:0",
        "test_kept_graph_and_its_tensors": f"leaked: growing {2 * MIB} B cuda:0"
        + (f", {RANDOM_STATE}" if keeps_random_state() else ""),
        "test_tensor_of_a_local_graph": f"leaked: growing {MIB} B cuda:0",
    }


def test_workspaces_of_a_captured_layer(tmp_path: Path) -> None:
    ended = run_case(tmp_path, "graphed_callable")
    # The layer and its graphs are a cycle of torch's own.
    assert {found["kind"] for found in ended.tests["test_graphed_callable"]["findings"]} == {"cycle"}
    assert ended.report["summary"]["leaked"] == 0


def test_the_state_that_a_library_keeps_for_the_whole_process(tmp_path: Path) -> None:
    ended = run_case(tmp_path, "library_states")
    assert list(ended.verdicts) == ["test_as_much_again"]
    assert ended.verdicts["test_as_much_again"].startswith("leaked: unattributed")


def test_a_graph_kept_without_its_tensors(tmp_path: Path) -> None:
    ended = run_case(tmp_path, "kept_graph")
    # Without a random state its pool is reserved, and nothing in it stays allocated.
    assert ended.verdicts == ({"test_kept_graph": f"leaked: {RANDOM_STATE}"} if keeps_random_state() else {})


def test_a_block_without_a_tensor(tmp_path: Path) -> None:
    ended = run_case(tmp_path, "raw_block")
    assert ended.verdicts == {"test_raw_block": f"leaked: unattributed {4 * MIB} B cuda:0 allocated"}
    assert {test["outcome"] for test in ended.tests.values()} == {"passed"}
    (finding,) = ended.tests["test_raw_block"]["findings"]
    (part,) = finding["contributions"]
    assert part["created"]["code"] == "BLOCKS.append(torch.cuda.caching_allocator_alloc(4 << 20))"


def test_lines_of_memory_that_no_tensor_explains(tmp_path: Path) -> None:
    ended = run_case(tmp_path, "allocator_history", "-W", "ignore::DeprecationWarning")
    assert ended.verdicts == {
        "test_list_of_a_scripted_module": f"leaked: unattributed {4 * MIB} B cuda:0 allocated",
        **({"test_graph_kept_with_its_pool": f"leaked: {RANDOM_STATE}"} if keeps_random_state() else {}),
        "test_pinned_kept": f"leaked: growing {MIB} B cpu",
        "test_storage_kept": f"leaked: growing {MIB} B cuda:0",
    }
    lines = {
        name: {part["created"]["code"] for found in ended.tests[name]["findings"] for part in found["contributions"]}
        for name in ended.verdicts
        if name in {"test_list_of_a_scripted_module", "test_graph_kept_with_its_pool"}
    }
    assert lines == {
        "test_list_of_a_scripted_module": {'self.items.append(torch.ones(count, device="cuda"))'},
        **({"test_graph_kept_with_its_pool": {"with torch.cuda.graph(graph):"}} if keeps_random_state() else {}),
    }


@pytest.mark.parametrize("allocator", ["", "expandable_segments:True"])
def test_budgets(tmp_path: Path, allocator: str) -> None:
    """An expandable segment gives a device memory before its first kernel gives it a context."""
    ended = run_case(tmp_path, "budgets", **({"PYTORCH_CUDA_ALLOC_CONF": allocator} if allocator else {}))
    over = f"unchecked: budget {52 * MIB} B cuda:0 allocated"
    assert ended.verdicts == {
        "test_exceeded": over,
        "test_within_and_leaks": f"leaked: growing {20 * MIB} B cuda:0",
        "test_exceeded_and_reset": over,
    }
    failed = {name for name, test in ended.tests.items() if test["outcome"] == "failed"}
    assert failed == {"test_exceeded", "test_exceeded_and_reset"}
    for name in failed:
        peak = ended.tests[name]["findings"][0]["peak"]
        (part,) = peak["parts"]
        assert (peak["bytes"], peak["unexplained_bytes"], part["bytes"]) == (52 * MIB, 0, 52 * MIB)
        assert (part["created"]["line"], peak["moment"]["phase"]) == (11, "call")


REVERSED = "def pytest_collection_modifyitems(items):\n    items.reverse()\n"


@pytest.mark.parametrize("option", ["--gpu-leak", "--no-header"], ids=["on", "off"])
@pytest.mark.parametrize("order", ["", REVERSED], ids=["as written", "reversed"])
def test_a_budget_is_one_number_in_every_order(tmp_path: Path, order: str, option: str) -> None:
    Path(tmp_path, "conftest.py").write_text(order, "utf-8")
    capability, workspaces = ("90", "32.0") if order and ON_THE_STAND_IN else ("80", "8.1")
    text = run_tests(tmp_path, "budget_order", option, CUDA_STANDIN_CC=capability)
    assert "1 failed, 8 passed, 1 error" in text
    if not ON_THE_STAND_IN:
        workspaces = text.partition("not counted: ")[2].split()[0]
    for peak in ("peak of 2.0 MiB on cuda:0 is 1.0 MiB over", "peak of 6.0 MiB on cuda:0 is 1.0 MiB over"):
        (line,) = [line for line in text.splitlines() if line.startswith("max_gpu_mb: ") and peak in line]
        assert line.endswith(f" allocated; not counted: {workspaces} MiB of workspaces)")
    assert "ERROR budget_order.py::test_over_before_the_workspace" in text
    assert "not checked" not in text
    assert "    6.0 MiB  1 x uint8 [6291456]  held  budget_order.py:" in text


def test_a_peak_without_workspaces_is_that_of_the_first_run(tmp_path: Path) -> None:
    text = run_tests(tmp_path, "peak_then_workspace", "--gpu-leak-peaks=1")
    assert "\n  peak of 32.0 MiB on cuda:0, above what was there before\n" in text
    assert "not told" not in text


CORNERS = {
    "test_only_in_the_first_run": ["the first run peaked at 16.0 MiB, its re-run, of which the parts are, at 8.0 MiB"],
    "test_resets_the_peak_itself": [],
    "test_compiled": ["code given to torch.compile ran uncompiled, so its peak may differ"],
    "test_under_a_mode_of_its_own": [],
    "test_in_a_thread": [],
    "test_records_the_history_itself": [
        "memory beyond tensors, since the run has ended the record of the allocator's history"
    ],
    "test_in_a_pool_of_its_own": [],
    "test_on_the_second_device": [],
}
"""What the peak of each test lacks."""
FAILS_AGAIN = "test_fails_in_its_re_run"
NO_HISTORY = "memory beyond tensors, since the allocator's history cannot be recorded (RuntimeError)"


@pytest.mark.parametrize("allocator", ["", "expandable_segments:True", "backend:cudaMallocAsync"])
def test_a_peak_that_is_hard_to_explain_is_told_in_part(tmp_path: Path, allocator: str) -> None:
    has_history = "Async" not in allocator  # nor pools
    chosen = [] if has_history else ["-k", "not history and not pool"]
    ended = run_case(tmp_path, "budget_corners", *chosen, PYTORCH_CUDA_ALLOC_CONF=allocator, CUDA_STANDIN_DEVICES="2")
    failed = {name: test for name, test in ended.tests.items() if test["outcome"] == "failed"}
    skipped = {name for name, test in ended.tests.items() if test["outcome"] == "skipped"}
    assert set(failed) == {name for name in (*CORNERS, FAILS_AGAIN) if name in ended.tests} - skipped
    assert failed.pop(FAILS_AGAIN)["findings"][0]["peak"] is None
    assert "not recorded: the re-run failed in call" in ended.text
    for name, test in failed.items():
        peak = test["findings"][0]["peak"]
        assert peak["bytes"] == 8 * MIB == sum(part["bytes"] for part in peak["parts"]), name
        assert (peak["unexplained_bytes"], peak["unsplit_bytes"]) == (0, 0), name
        assert set(peak["lacks"]) == {*CORNERS[name], *([] if has_history else [NO_HISTORY])}, name


def test_out_of_memory_names_the_culprit(tmp_path: Path) -> None:
    ended = run_case(tmp_path, "out_of_memory", CUDA_STANDIN_MIB="200")
    assert ended.verdicts == {"test_culprit": f"leaked: growing {60 * MIB} B cuda:0", "test_victim": "unchecked"}
    section = ended.text.partition("GPU memory (who holds it)")[2].partition("\n---")[0]
    assert "tests that ended: 180.0 MiB" in section  # its own run, the second, and the third for its lines
    assert "out_of_memory.py::test_culprit" in section
    assert "held by out_of_memory.HISTORY[0]" in section


def test_owners(tmp_path: Path) -> None:
    assert run_case(tmp_path, "owners").verdicts == {
        "test_gradients_of_a_fixture": f"noted: retained {(64 * 64 + 64) * 4} B cuda:0",
        "test_leak_in_a_thread": f"leaked: growing {MIB} B cuda:0",
    }


def test_unread_gradients_beside_a_fixtures(tmp_path: Path) -> None:
    ended = run_case(tmp_path, "unread_gradients")
    with_gradients = 2 * (256 * 256 + 256) * 4
    assert ended.verdicts["test_unread_gradients"] == f"leaked: growing {with_gradients} B cuda:0"


def test_a_device_that_fails_in_the_middle(tmp_path: Path) -> None:
    ended = run_case(tmp_path, "lost_device")
    assert ended.verdicts == {
        "test_leak_before": f"leaked: growing {4 * MIB} B cuda:0",
        "test_loses_the_device": "unchecked",
        "test_uses_it": "unchecked",
        "test_leak_on_the_cpu": "unchecked",
        "test_catches_the_error": "unchecked",
        "test_on_the_cpu": "unchecked",
    }
    (lost,) = ended.report["summary"]["lost_devices"]
    assert lost["device"] == "cuda:0"
    assert lost["error"].startswith("CUDA error: ")
    assert [lost[key].partition("::")[2] for key in ("nodeid", "last_answered")] == [
        "test_loses_the_device",
        "test_leak_before",
    ]
    assert sum("stopped answering" in line for line in ended.text.splitlines()) == 1
    assert ended.report["faults"] == []
    assert all(
        "stopped answering" in ended.tests[name]["why_unchecked"] for name in ("test_uses_it", "test_on_the_cpu")
    )


@pytest.mark.parametrize("options", [(), ("--gpu-leak-clean",)], ids=["kept", "cleaned"])
def test_clean_gives_the_memory_of_a_failed_test_back(tmp_path: Path, options: tuple[str, ...]) -> None:
    ended = run_case(tmp_path, "cleaned", *options, CUDA_STANDIN_MIB="500")
    outcomes = {name: test["outcome"] for name, test in ended.tests.items()}
    assert outcomes == {"test_fails": "failed", "test_needs_the_memory": "passed" if options else "failed"}
    assert "cleanup" not in ended.report["summary"]  # the plugin's own call is not the suite's


def test_a_snapshot_of_memory_that_no_tensor_explains(tmp_path: Path) -> None:
    run_case(tmp_path, "raw_block", "--gpu-leak-snapshots=shots")
    (path,) = Path(tmp_path, "shots").iterdir()
    assert "test_raw_block" in path.name
    snapshot = pickle.loads(path.read_bytes())
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    assert [block["size"] for block in blocks if block["state"] == "active_allocated"] == [4 * MIB] * 3


FIRST_INIT = {
    "collection": "while first_init.py was collected, at first_init.py:{collection}; forked processes cannot use it",
    "driver": "while the tests were collected, not by torch.cuda; forked processes cannot use it",
    "fixture": "in the setup of fixture 'model' (first_init.py:{definition}) of first_init.py::test_fixture, at first_init.py:{fixture}",
    "zeros": "in first_init.py::test_it, at first_init.py:{zeros}",
    "default": "in first_init.py::test_it, at first_init.py:{default}",
    "thread": "in first_init.py::test_it, at first_init.py:{thread}, in the thread 'loader'",
    "driver in a test": "after the tests were collected, not by torch.cuda",
    "available": None,
    "fork": None,
}
LINES_OF_FIRST_INIT = {
    "collection": "    torch.cuda.current_device()",
    "definition": '@pytest.fixture(scope="session")',
    "fixture": '    return torch.zeros(8, device="cuda")',
    "zeros": '        torch.zeros(8, device="cuda")',
    "default": "        torch.ones(2)",
    "thread": "    torch.cuda.init()  # by a thread",
}


@pytest.mark.parametrize("way", FIRST_INIT)
def test_who_initialises_the_device_first(tmp_path: Path, way: str) -> None:
    ended = run_case(tmp_path, "first_init", "-v", FIRST_INIT=way)
    code = (CASES / "first_init.py").read_text("utf-8").splitlines()
    lines = {name: code.index(line) + 1 for name, line in LINES_OF_FIRST_INIT.items()}
    said = [line for line in ended.text.splitlines() if "first initialised" in line]
    expected = FIRST_INIT[way]
    assert said == ([] if expected is None else [f"gpu-leak: cuda was first initialised {expected.format_map(lines)}"])
    assert ("first_init" in ended.report["summary"]) is (expected is not None)
    assert {test["outcome"] for test in ended.tests.values()} == {"passed"}


@pytest.mark.parametrize("way", ["used first", "used before", "recorded before", "recorded meanwhile"])
def test_the_lines_of_a_fixtures_only_setup(tmp_path: Path, way: str) -> None:
    """A recording of the user's is left on; of its stacks no line is told."""
    ended = run_case(tmp_path, "setup_lines", SETUP_LINES=way)
    code = (CASES / "setup_lines.py").read_text("utf-8").splitlines()
    layer, table = (number for number, line in enumerate(code, 1) if line.strip().startswith("return torch."))
    lines = {
        (fixture["name"], array["created"] and array["created"]["line"])
        for fixture in ended.report["fixtures"]
        for found in fixture["findings"]
        for array in found["tensors"]
    }
    recorded = way.startswith("recorded")
    assert lines == {("model", None if recorded else layer), ("table", None if recorded else table)}
    assert {test["outcome"] for test in ended.tests.values()} == {"passed"}
