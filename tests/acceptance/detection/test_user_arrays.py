"""A conftest.py's `pytest_gpuleak_arrays` that fails: what it cannot tell of is unchecked, and nothing else is lost."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Run, Runner

CONFTEST = """
    from tests.support.standin import Buffer, Memory, StandInArrays

    class Odd:
        device = "cpu"

        def __init__(self, size):
            self.memory = Memory(size)

        def plain(self):
            self.same = Buffer(device=self.device, memory=self.memory)
            return self.same

    class OddArrays(StandInArrays):
        name = "odd"

        def array_type(self):
            return Odd

        def storage(self, array):
            return array.memory.address

        def read(self, array):
            return StandInArrays.read(self, array.plain())._replace(identity=id(array))

        def hold(self, array):
            return StandInArrays.hold(self, array.plain())

    class Broken(OddArrays):
        METHOD

    def pytest_gpuleak_arrays(config):
        return [Broken(), StandInArrays()]
"""
SUITE = """
    from conftest import Odd
    KEPT = []

    def test_odd():
        KEPT.append(Odd(2**21))

    def test_plain():
        KEPT.append(Buffer(2**21))

    def test_none():
        pass
"""
PLAIN_CONFTEST = """
    from tests.support.standin import StandInArrays

    def pytest_gpuleak_arrays(config):
        BODY
"""
PLAIN = """
    KEPT = []

    def test_plain():
        KEPT.append(Buffer(2**21))
"""


def warnings_of(found: Run) -> list[str]:
    return [line for line in found.result.outlines if "PytestWarning" in line]


def write(pytester: pytest.Pytester, template: str, **parts: str) -> None:
    source = textwrap.dedent(template)
    for name, text in parts.items():
        indent = next(line for line in source.splitlines() if name in line).split(name)[0]
        source = source.replace(name, text.replace("\n", "\n" + indent))
    (pytester.path / "conftest.py").write_text(source)


TYPES = {
    "array_type raises": ("def array_type(self): raise OSError('no library')", "array_type()"),
    "array_type skips": ("def array_type(self):\n    import pytest; pytest.skip('no library')", "array_type()"),
    "array_type is object": ("def array_type(self): return object", "the class object"),
    "array_type is a text": ("def array_type(self): return 'Odd'", "returned 'Odd'"),
}  # fmt: skip
METHODS = {
    "read raises": ("def read(self, array): raise ValueError('bad stride')", "unchecked", "ValueError: bad stride"),
    "read is a dict": ("def read(self, array): return {}", "unchecked", "an object of type dict"),
    "read tells a size below 0": (
        "def read(self, array): return OddArrays.read(self, array)._replace(storage_bytes=-1)", "unchecked", "returned -1",
    ),
    "read tells no device": (
        "def read(self, array): return OddArrays.read(self, array)._replace(device=None)", "unchecked", "returned None",
    ),
    "read tells another identity": (
        "def read(self, array): return OddArrays.read(self, array)._replace(identity=7)", "leaked", "",
    ),
    "hold raises": ("def hold(self, array): raise ValueError('no handle')", "leaked", "ValueError: no handle"),
    "hold is None": ("def hold(self, array): return None", "leaked", "'NoneType' object has no attribute 'storage'"),
    "storage raises": ("def storage(self, array): raise ValueError('no key')", "leaked", "no key"),
    "storage_users raises": ("def storage_users(self, array): raise ValueError('no count')", "leaked", "no count"),
    "tracing raises": ("def trace_origins(self, is_user_file): raise ValueError('no mode')", "leaked", "no mode"),
    "tracing is None": ("def trace_origins(self, is_user_file): return None", "leaked", "NoneType"),
}  # fmt: skip


@pytest.mark.parametrize(("method", "text"), TYPES.values(), ids=TYPES)
def test_a_type_that_is_none_costs_its_own_arrays_alone(
    run: Runner, pytester: pytest.Pytester, method: str, text: str
) -> None:
    write(pytester, CONFTEST, METHOD=method)
    found = run(SUITE)
    assert (found.verdicts["test_odd"], found.verdicts["test_plain"]) == ("unchecked", "leaked")
    assert found.result.ret == 1
    assert found.tests["test_odd"]["why_unchecked"] == found.tests["test_odd"]["faults"][0]
    (warning,) = warnings_of(found)
    assert "() of the arrays 'odd' failed: " in warning
    assert text in warning
    assert "(conftest.py:" in warning


def test_a_method_that_fails_costs_its_own_arrays_alone(run: Runner, pytester: pytest.Pytester) -> None:
    write(pytester, CONFTEST, METHOD="pass")
    conftest = pytester.path / "conftest.py"
    others = "\n\nOTHERS = [StandInArrays()]\n\ndef pytest_gpuleak_arrays(config):\n    return OTHERS\n"
    suite = "import conftest\nKEPT = []\n\ndef test_plain():\n    KEPT.append(Buffer(2**21))\n"
    for number, (name, (method, _, _)) in enumerate(METHODS.items()):
        others += f"\nclass Odd{number}(Odd):\n    pass\n\nclass Broken{number}(OddArrays):\n    name = {name!r}\n"
        others += f"    def array_type(self): return Odd{number}\n    {method}\n\nOTHERS.append(Broken{number}())\n"
        suite += f"\ndef test_{number}():\n    KEPT.append(conftest.Odd{number}(2**21))\n"
    conftest.write_text(conftest.read_text() + others)
    found = run(suite)
    assert (found.verdicts.pop("test_plain"), found.result.ret) == ("leaked", 1)
    for number, (name, (_, verdict, text)) in enumerate(METHODS.items()):
        test = found.tests[f"test_{number}"]
        assert test["verdict"] == verdict, name
        assert verdict == "leaked" or test["why_unchecked"] == test["faults"][0], name
        told = [line for line in warnings_of(found) if f"() of the arrays {name!r} failed: " in line]
        assert [text in line and "(conftest.py:" in line for line in told] == ([True] if text else []), name


def test_a_handle_that_fails_later_does_not_stop_the_run(run: Runner, pytester: pytest.Pytester) -> None:
    method = """
    def hold(self, array):
        handle = OddArrays.hold(self, array)
        handle.alive = lambda: 1 / 0
        return handle
    """
    write(pytester, CONFTEST, METHOD=textwrap.dedent(method).strip())
    found = run(SUITE)
    assert found.verdicts["test_plain"] == "leaked"
    assert found.verdicts["test_odd"] != "clean"
    assert "ZeroDivisionError: division by zero" in warnings_of(found)[0]


HOOKS = {
    "raises": ("raise OSError('no library')", "OSError: no library (conftest.py:"),
    "is no list": ("return StandInArrays()", "it returned an object of type StandInArrays, accepted is a list of frameworks"),
    "has no methods": ("return [object(), StandInArrays()]", "object has no array_type and no storage and no read and no"),
    "lacks one": (
        "class Half(StandInArrays): hold = None\nreturn [StandInArrays(), Half()]", "TypeError: Half has no hold"
    ),
    "exits": ("return [StandInArrays(), 1 / 0]", "ZeroDivisionError"),
}  # fmt: skip


@pytest.mark.parametrize(("body", "text"), HOOKS.values(), ids=HOOKS)
def test_a_hook_that_fails_is_told_of_once_and_the_run_goes_on(
    run: Runner, pytester: pytest.Pytester, body: str, text: str
) -> None:
    write(pytester, PLAIN_CONFTEST, BODY=body)
    found = run(PLAIN, "--gpu-leak-strict")
    found.result.assert_outcomes(passed=1, warnings=1)
    (fault,) = found.report["faults"]
    assert fault.startswith("the hook pytest_gpuleak_arrays failed: ")
    assert text in fault
    assert fault in warnings_of(found)[0]
    # What the hook did return is watched.
    assert found.verdicts == {"test_plain": "leaked" if "[" in body and "1 / 0" not in body else "clean"}
    found.result.stdout.fnmatch_lines(["gpu-leak: the check itself failed outside of the tests: the hook *"])
    assert found.result.ret == 1


def test_none_and_nothing_are_no_faults(run: Runner, pytester: pytest.Pytester) -> None:
    for body in ("return []", "return None"):
        write(pytester, PLAIN_CONFTEST, BODY=body)
        found = run(PLAIN)
        assert (found.report["faults"], found.verdicts) == ([], {"test_plain": "clean"})
