"""What pytest shows of a failure is the user's code alone, as in a run without the plugin."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak.session.faults import drop_own_frames

if TYPE_CHECKING:
    from tests.conftest import Runner

FIXTURES = """
import pytest

@pytest.fixture(scope="session")
def broken():
    raise RuntimeError("no model")

@pytest.fixture
def broken_at_the_end():
    yield
    raise RuntimeError("no end")

def pytest_runtest_call(item):
    if item.name == "test_third":
        raise RuntimeError("no call")
"""


# Of an error in the test's own file pytest shows only what is below it; in a conftest.py it shows every plugin's frame.
@pytest.mark.parametrize(
    ("options", "style"),
    [(["--gpu-leak"], "long"), (["--gpu-leak", "--gpu-leak-clean"], "short"), (["--gpu-leak-max-mb=1"], "long")],
)
def test_no_frame_of_the_plugin_is_shown(
    run: Runner, pytester: pytest.Pytester, options: list[str], style: str
) -> None:
    conftest = pytester.path / "conftest.py"
    conftest.write_text(conftest.read_text() + FIXTURES)
    source = """
        def test_first(broken): pass
        # pytest raises the fixture's error again in the setup of each test that asks for it.
        def test_second(broken): pass
        def test_third(): pass
        def test_fourth(broken_at_the_end): pass
        """
    result = run(source, f"--tb={style}", *options, plugin="-v").result
    result.assert_outcomes(passed=1, failed=1, errors=3)
    output = result.stdout.str()
    assert "no model" in output
    assert not [line for line in output.splitlines() if "pytest_gpuleak" in line]


# Code that has no file is left out by pytest, and so are its own frames and pluggy's: nothing remains, and all is shown.
GENERATED = """
import json
import pytest

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report):
    if report.failed:
        with open("texts.jsonl", "a") as file:
            file.write(json.dumps([report.nodeid, report.when, str(report.longrepr)]) + "\\n")

namespace = {}
exec('''
def make():
    raise RuntimeError("no model")
def make_and_end():
    yield
    raise RuntimeError("no end")
def make_in_vain():
    try:
        raise KeyError("first")
    except KeyError as error:
        raise RuntimeError("second") from error
def pytest_runtest_call(item):
    if item.name == "test_called":
        raise RuntimeError("no call")
''', namespace)
broken = pytest.fixture(scope="session", name="broken")(namespace["make"])
broken_here = pytest.fixture(name="broken_here")(namespace["make_in_vain"])
broken_late = pytest.fixture(name="broken_late")(namespace["make_and_end"])

@pytest.fixture(scope="module")
def asks(request):
    request.getfixturevalue("broken")

pytest_runtest_call = namespace["pytest_runtest_call"]
"""

GENERATED_TESTS = """
    def test_first(broken): pass
    def test_again(broken): pass
    def test_asking(asks): pass
    def test_here(broken_here): pass
    def test_late(broken_late): pass
    def test_called(): pass
    """


@pytest.mark.parametrize(
    ("style", "options"),
    [
        (["--tb=short"], ["--gpu-leak"]),
        (["--tb=native", "--full-trace"], ["--gpu-leak", "--gpu-leak-clean"]),
        (["--tb=native"], ["--gpu-leak-max-mb=1"]),
    ],
)
def test_a_failure_without_a_frame_of_the_users_reads_as_without_the_plugin(
    pytester: pytest.Pytester, style: list[str], options: list[str]
) -> None:
    pytester.makeconftest(GENERATED)
    texts = []
    for switches in (["-p", "no:gpuleak"], options):
        path = pytester.path / "texts.jsonl"
        path.unlink(missing_ok=True)
        pytester.makepyfile(test_it=GENERATED_TESTS)
        pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:randomly", *style, *switches)
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        texts.append([[_without_plugins(text) for text in line] for line in lines])
    assert len(texts[0]) == 6
    assert texts[1] == texts[0]


def _without_plugins(text: str) -> str:
    """Leave out addresses, and the arguments of pluggy's functions, which list the plugins that there are."""
    return re.sub("0x[0-9a-f]+", "0x", re.sub("^(methods|hook_impls) = .*", "", text, flags=re.MULTILINE))


def test_an_error_without_a_traceback_and_one_that_is_its_own_cause_are_left_alone() -> None:
    error = RuntimeError()
    error.__cause__ = error
    drop_own_frames(error)
    assert error.__traceback__ is None


INTERRUPTED = """
from pytest_gpuleak.session.leak_check import LeakCheck

def deep_in_the_check(*arguments):
    raise KeyboardInterrupt

LeakCheck.judge = deep_in_the_check
"""


@pytest.mark.parametrize("options", [[], ["--full-trace"]])
def test_no_frame_is_shown_where_ctrl_c_comes_while_the_check_is_at_work(
    run: Runner, pytester: pytest.Pytester, options: list[str]
) -> None:
    conftest = pytester.path / "conftest.py"
    conftest.write_text(conftest.read_text() + INTERRUPTED)
    found = run("def test_first(): pass\ndef test_second(): pass", *options, apart=True)
    assert found.result.ret == pytest.ExitCode.INTERRUPTED
    assert "!!! KeyboardInterrupt !!!" in found.result.stdout.str()
    assert "deep_in_the_check" not in found.result.stdout.str()
    assert "2 of 2 tests did not run to the end" in found.report["incomplete"]
