"""What pytest shows of a failure is the user's code alone, as in a run without the plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

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
@pytest.mark.parametrize("style", ["long", "short"])
@pytest.mark.parametrize("options", [["--gpu-leak"], ["--gpu-leak", "--gpu-leak-clean"], ["--gpu-leak-max-mb=1"]])
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
