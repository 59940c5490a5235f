"""Beside other plugins of pytest, with a test that uses what each brings: the same verdicts, and the same outcomes."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from tests.conftest import Runner

pytestmark = pytest.mark.slow


class Plugin(NamedTuple):
    """A plugin: its module, and how a test uses it. The test leaks by `keep()`; its twin lets go."""

    module: str
    test: str
    arguments: tuple[str, ...] = ()
    package: str = ""
    times: int = 1


PLUGINS = {
    "asyncio": Plugin("pytest_asyncio.plugin", "async def test_it():\n    keep()\n", ("-o", "asyncio_mode=auto")),
    "benchmark": Plugin("pytest_benchmark.plugin", "def test_it(benchmark):\n    benchmark.pedantic(keep, rounds=1)\n"),
    "cov": Plugin("pytest_cov.plugin", "def test_it():\n    keep()\n", ("--cov=.", "--cov-report=")),
    "flaky": Plugin(
        "flaky.flaky_pytest_plugin",
        "@flaky\ndef test_it():\n    runs.append(0)\n    assert len(runs) > 1\n    keep()\n",
    ),
    "forked": Plugin("pytest_forked", "def test_it():\n    keep()\n", ("--forked",)),
    "harvest": Plugin(
        "pytest_harvest.plugin",
        "def test_it(results_bag):\n    results_bag.ran = 1\n    keep()\n",
        ("-p", "xdist.plugin"),
    ),
    "hypothesis": Plugin(
        "_hypothesis_pytestplugin",
        "@settings(max_examples=3, database=None)\n@given(integers())\ndef test_it(number):\n    keep()\n",
        package="hypothesis",
    ),
    "mock": Plugin("pytest_mock", "def test_it(mocker):\n    mocker.patch('os.getcwd')\n    keep()\n"),
    "randomly": Plugin("pytest_randomly", "def test_it():\n    keep()\n"),
    "repeat": Plugin("pytest_repeat", "def test_it():\n    keep()\n", ("--count=3",), times=3),
    "rerunfailures": Plugin(
        "pytest_rerunfailures",
        "def test_it():\n    runs.append(0)\n    assert len(runs) > 1\n    keep()\n",
        ("--reruns=1",),
    ),
    "subtests": Plugin(
        "pytest_subtests.plugin",
        "def test_it(subtests):\n    with subtests.test(msg='part'):\n        keep()\n",
    ),
    "timeout": Plugin("pytest_timeout", "@pytest.mark.timeout(60)\ndef test_it():\n    keep()\n"),
    "xdist": Plugin("xdist.plugin", "def test_it():\n    keep()\n", ("-p", "xdist.looponfail", "-n", "1")),
}

HEAD = """
import pytest
from tests.support.standin import Buffer

try:
    from flaky import flaky
    from hypothesis import given, settings
    from hypothesis.strategies import integers
except ImportError:
    pass

KEPT, runs, other_runs = [], [], []

def keep():
    KEPT.append(Buffer(4096))

def let_go():
    assert Buffer(4096)

def test_other():
    pass

"""


TOGETHER = ("benchmark", "cov", "hypothesis", "timeout")
"""Plugins that leave it to pytest how often and where a test runs: they are loaded beside each other."""


@pytest.mark.parametrize("names", [TOGETHER, *((name,) for name in PLUGINS if name not in TOGETHER)], ids=" ".join)
def test_plugins_change_no_verdict(
    run: Runner, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    plugins = {name: PLUGINS[name] for name in names if is_installed(PLUGINS[name])}
    if not plugins:
        pytest.skip(f"the plugin for {' '.join(names)} is not installed")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_ADDOPTS")
    source = HEAD
    for name, plugin in plugins.items():
        clean = plugin.test.replace("test_it", f"test_clean_{name}").replace("keep", "let_go")
        source += plugin.test.replace("test_it", f"test_leaks_{name}") + clean.replace("runs", "other_runs")
    pytester.makepyfile(test_it=source)
    given: list[Any] = [part for plugin in plugins.values() for part in ("-p", plugin.module, *plugin.arguments)]
    given += ["-p", "pytest_gpuleak.plugin"]
    without = run("", *given, apart=True, plugin="--no-gpu-leak", report=False).result.parseoutcomes()
    if without.keys() & {"failed", "errors"}:
        pytest.skip(f"the plugin for {' '.join(names)} does not work with pytest {pytest.__version__}")
    found = run("", *given, apart=True)
    outcomes = found.result.parseoutcomes()
    leaked = outcomes.pop("leaked", 0)
    assert {word: count for word, count in outcomes.items() if "warning" not in word} == {
        word: count for word, count in without.items() if "warning" not in word
    }
    assert "itself failed" not in found.result.stdout.str() + found.result.stderr.str()
    assert leaked == sum(plugin.times for plugin in plugins.values())
    tests = [(test["nodeid"].rpartition("::")[2], test) for test in found.report["tests"]]
    for name in plugins:
        leaks = [test["findings"] for test_name, test in tests if f"leaks_{name}" in test_name and test["findings"]]
        assert {tuple(finding["kind"] for finding in findings) for findings in leaks} == {("growing",)}, name
        verdicts = {test["verdict"] for test_name, test in tests if f"clean_{name}" in test_name}
        assert verdicts, name
        assert verdicts <= {"clean", "unchecked"}, name


def is_installed(plugin: Plugin) -> bool:
    return importlib.util.find_spec((plugin.package or plugin.module).partition(".")[0]) is not None
