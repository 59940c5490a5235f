"""Runs of pytest with the plugin on, and what they reported."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import importlib
import importlib.util
import json
import os
import pathlib
import pkgutil
import re
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

import pytest_gpuleak
from pytest_gpuleak.adapters.torch import lookup as torch_lookup
from tests.support import distributions

if TYPE_CHECKING:
    import types

    from tests.support.forked import ForkServer
    from tests.support.nvml import DriverState

STAND_IN = """
    import pytest
    from tests.support.standin import Buffer, StandInArrays

    def pytest_gpuleak_arrays(config):
        return [StandInArrays()]
"""

OFF = [option for name in ("asyncio", "benchmark", "pytest_cov", "flaky", "syrupy") for option in ("-p", f"no:{name}")]
"""Keeps out plugins that are installed to be tested with: a test names the module of the one that it needs."""

IMPORTS_HYPOTHESIS = re.compile(r"^\s*(?:from|import) hypothesis\b", re.MULTILINE)
FROZEN_BY_THE_INTERPRETER = 5_000
"""Objects: Python 3.12 freezes a few hundred as it starts."""

Json = dict[str, Any]


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Set hypothesis up before a file that imports it is imported: `@settings` copies the profile that is loaded then.

    Where no file does, it stays out: every collection and search of a run inside the tests would walk its 10,000 objects.
    """
    if isinstance(collector, pytest.Module) and IMPORTS_HYPOTHESIS.search(collector.path.read_text("utf-8")):
        set_up_hypothesis()


@functools.cache
def set_up_hypothesis() -> None:
    """Load a profile by which no test depends on how fast examples are made."""
    from hypothesis import HealthCheck, settings

    slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
    settings.register_profile("loaded", deadline=None, suppress_health_check=slow)
    settings.load_profile("loaded")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Import torch, TensorFlow, and the package, before pytester takes its snapshot of `sys.modules`.

    Imported in the body of a test, torch would be dropped from there with the rest when pytester restores the snapshot,
    and initialised a second time by the next test, which ends in a segmentation fault. The simulated accelerator comes
    with it: torch counts the devices once, when the first backward pass of the process begins.

    The package's modules, imported by a run inside a test, would be imported anew by each, and the old ones with all that
    such a run has made would stay: the heap, and with it the time of each collection and search, would grow from test to
    test.
    """
    if isinstance(item, pytest.Function) and "pytester" in item.fixturenames:
        import_package()
    if item.get_closest_marker("torch") is not None:
        with contextlib.suppress(ImportError):
            importlib.import_module("torch")
            if item.path.parent.name != "gpu":  # with it, `torch.accelerator` is no longer CUDA
                importlib.import_module("tests.support.simgpu").install()
    if item.get_closest_marker("tensorflow") is not None:
        with contextlib.suppress(ImportError), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its own imports warn of what other libraries have deprecated
            importlib.import_module("tensorflow")
            importlib.import_module("keras")


@functools.cache
def import_package() -> None:
    """Import every module of the package that can be imported here, and NumPy, which no process can import twice.

    What is installed is read once as well: a sixth of what a run inside the tests takes is to read it.
    """
    distributions.remember()
    modules = [module.name for module in pkgutil.walk_packages(pytest_gpuleak.__path__, "pytest_gpuleak.")]
    for name in ("numpy", *modules):
        if not name.endswith("__main__"):
            with contextlib.suppress(ImportError):
                importlib.import_module(name)


@pytest.fixture(autouse=True)
def without_plugins_of_other_tests(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs inside the tests load the plugins that are installed for a few of them only where they are asked to."""
    if "pytester" in request.fixturenames:
        request.getfixturevalue("pytester")  # which forgets the variable when it is made
        # Beside pytest-xdist, rerunfailures starts a thread in each run that never ends. Where these tests have imported
        # hypothesis, its plugin imports it anew in each run inside them, and the heap grows by what each leaves.
        names = ("asyncio", "benchmark", "pytest_cov", "flaky", "syrupy", "rerunfailures", "hypothesispytest")
        monkeypatch.setenv("PYTEST_ADDOPTS", " ".join(f"-p no:{name}" for name in names))


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    """Fail the test that leaves the heap frozen: a search of a later test would find none of the holders there."""
    yield
    frozen = getattr(gc, "get_freeze_count", int)()  # PyPy has none
    if frozen > FROZEN_BY_THE_INTERPRETER:
        gc.unfreeze()
        pytest.fail(f"the test has left {frozen:,} objects frozen: `gc.unfreeze()` is missing", pytrace=False)


@pytest.fixture(autouse=True)
def outside_of_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs inside the tests publish nothing to the CI service that the tests run on, and are no workers of xdist's."""
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "GITLAB_CI", "PYTEST_XDIST_WORKER"):
        monkeypatch.delenv(name, raising=False)


def forget_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take torch away, and have the plugin look for one in `sys.modules` alone: tests put a stand-in there."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(torch_lookup.TorchLookup, "_search_classes", lambda self: None)
    monkeypatch.setattr(torch_lookup, "LOOKUP", torch_lookup.TorchLookup())


@dataclasses.dataclass
class Run:
    """What a run with the plugin printed, returned and reported."""

    result: pytest.RunResult
    report: Json

    @property
    def tests(self) -> dict[str, Json]:
        """The records by test name; of several attempts the last."""
        return {test["nodeid"].split("::", 1)[-1]: test for test in self.report["tests"]}

    @property
    def verdicts(self) -> dict[str, str]:
        """The verdicts by test name."""
        return {name: test["verdict"] for name, test in self.tests.items()}

    @property
    def fixtures(self) -> dict[str, Json]:
        """The fixtures' records by name."""
        return {fixture["name"]: fixture for fixture in self.report["fixtures"]}

    def finding(self, name: str) -> Json:
        """The one finding of a test."""
        (finding,) = self.tests[name]["findings"]
        assert isinstance(finding, dict)
        return finding

    def holder(self, name: str) -> str:
        """The holder's text of a test's one finding."""
        return str(self.finding(name)["holder"]["text"])


Runner = Callable[..., Run]


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """Forks for runs in processes of their own that need torch."""
    from tests.support.forked import ForkServer

    server = ForkServer("torch")
    yield server
    server.close()


@pytest.fixture
def torch_server(request: pytest.FixtureRequest) -> ForkServer | None:
    """The same where runs can be forked."""
    return (
        request.getfixturevalue("fork_server")
        if sys.platform == "linux" and importlib.util.find_spec("torch")
        else None
    )


@pytest.fixture
def run_with_torch(
    torch_server: ForkServer | None, tmp_path: pathlib.Path
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a program's text in a process of its own, forked from one that has imported torch where that can be."""

    def start(text: str, *arguments: str, file: str = "program.py") -> subprocess.CompletedProcess[str]:
        (tmp_path / file).write_text(textwrap.dedent(text), "utf-8")
        environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).parent.parent), "COLUMNS": "80"}
        if torch_server is not None:
            return torch_server.run([file, *arguments], environment, tmp_path, 300)
        command = [sys.executable, file, *arguments]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=300
        )

    return start


@pytest.fixture(scope="session")
def warm_torch_server() -> Iterator[ForkServer]:
    """Forks for runs in processes of their own that need torch, and find the plugin imported too."""
    from tests.support.forked import ForkServer

    server = ForkServer("torch", "pytest_gpuleak")
    yield server
    server.close()


@pytest.fixture(scope="session")
def plain_fork_server() -> Iterator[ForkServer]:
    """Forks for runs in processes of their own, which import torch themselves where they need it."""
    from tests.support.forked import ForkServer

    server = ForkServer()
    yield server
    server.close()


@pytest.fixture(scope="session")
def warm_fork_server() -> Iterator[ForkServer]:
    """Forks for runs in processes of their own that find the plugin imported."""
    from tests.support.forked import ForkServer

    server = ForkServer("pytest_gpuleak")
    yield server
    server.close()


@pytest.fixture
def cold() -> None:
    """Has runs in processes of their own import the plugin themselves, also where all others are warm."""


@pytest.fixture
def forked(request: pytest.FixtureRequest, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forks each run in a process of its own from one that has imported torch: for tests whose suites import it first."""
    if sys.platform == "linux":
        server = "warm_torch_server" if is_warm(request) else "fork_server"
        request.getfixturevalue(server).use_in(pytester, monkeypatch)


def is_warm(request: pytest.FixtureRequest) -> bool:
    """Tell whether a test's processes are forked from one that has imported the plugin."""
    return "warm" in request.fixturenames and "cold" not in request.fixturenames


@pytest.fixture
def run(request: pytest.FixtureRequest, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Runner:
    """Runs a test file's source under the plugin: in this process, or in one of its own with ``apart=True``.

    Such a process is forked from one that has imported pytest, which takes two fifths of a short run; with the fixture
    `warm`, which all acceptance tests have, it has imported the plugin as well, a third of what is left.
    """
    monkeypatch.setenv("PYTHONPATH", str(pathlib.Path(__file__).parent.parent), prepend=os.pathsep)
    pytester.makeconftest(textwrap.dedent(STAND_IN))

    def start(
        source: str, *arguments: str, apart: bool = False, plugin: str = "--gpu-leak", report: bool = True
    ) -> Run:
        if source:
            pytester.makepyfile(test_it="from tests.support.standin import Buffer\n" + textwrap.dedent(source))
        # Without hypothesis's plugin, which takes two seconds to load its strategies in each new process.
        plugins = ["-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:hypothesispytest", *OFF]
        # With a report, the holders of notes are searched for too.
        options = [*plugins, plugin, *(["--gpu-leak-report=report.json"] if report else []), *arguments]
        if not apart:
            gc.collect()  # what an earlier run has left would be freed within a test of this one, and hide what that test adds
        if apart and sys.platform == "linux" and "forked" not in request.fixturenames:
            server = "warm_fork_server" if is_warm(request) else "plain_fork_server"
            with monkeypatch.context() as forking:
                request.getfixturevalue(server).use_in(pytester, forking)
                result = pytester.runpytest_subprocess(*options)
        else:
            result = (pytester.runpytest_subprocess if apart else pytester.runpytest_inprocess)(*options)
        path = pytester.path / "report.json"
        return Run(result, json.loads(path.read_text()) if path.exists() else {})

    return start


@pytest.fixture
def run_wired(run: Runner) -> Runner:
    """As `run`, without pytest-rerunfailures, whose own handling of a failed test's frames would be seen."""

    def start(source: str, *arguments: str, apart: bool = False, plugin: str = "--gpu-leak") -> Run:
        return run(source, "-p", "no:rerunfailures", *arguments, apart=apart, plugin=plugin)

    return start


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The stand-in for the NVIDIA driver's library, compiled."""
    from tests.support.nvml import build

    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def nvml_state(nvml_library: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> DriverState:
    """The state of the stand-in, which the binding has loaded in place of the driver's library."""
    from tests.support.nvml import install

    return install(monkeypatch, nvml_library, tmp_path / "nvml-state")


@pytest.fixture
def make_module(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str, str], types.ModuleType]]:
    """Writes a module's source, imports it, and forgets it after the test."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made: list[str] = []

    def make(name: str, source: str) -> types.ModuleType:
        (tmp_path / f"{name}.py").write_text(source)
        made.append(name)
        return importlib.import_module(name)

    yield make
    for name in made:
        sys.modules.pop(name).__dict__.clear()


@pytest.fixture
def small_heap(request: pytest.FixtureRequest) -> Iterator[None]:
    """Hide all that is alive: a search walks over the heap once a level, and that of all tests has millions of objects.

    Not before a run within the test, which would take it for a heap that the user has frozen.
    """
    gc.collect()
    if "pytester" not in request.fixturenames:
        gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def torch() -> Any:
    """torch itself; `pytest.mark.torch` imports it in time."""
    return pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture
def app(make_module: Callable[[str, str], types.ModuleType]) -> Any:
    """A module that stands for the user's application: what tests hang on it are globals that a path can start from."""
    return make_module("leaky_app", "HISTORY = []\nCACHE: dict = {}\n\n\nclass Attention:\n    masks = {}\n")
