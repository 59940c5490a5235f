"""A conftest.py's whole framework: its devices, settle steps and the rest count as torch's; its faults cost no outcome."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import pytest

from pytest_gpuleak.engine import limits

if TYPE_CHECKING:
    from tests.conftest import Run, Runner

CONFTEST = """
    from pytest_gpuleak.adapters.probe_protocol import DeviceReading
    from pytest_gpuleak.adapters.protocol import Framework
    from pytest_gpuleak.model.findings import Autograd, Contribution
    from tests.support.standin import Buffer, StandInArrays

    USED = {"raw": 0, "cached": 0}
    PEAK = [0]

    def take(size, kind="raw"):
        USED[kind] += size
        PEAK[0] = max(PEAK[0], sum(USED.values()))

    class Devices:
        name = "toy"
        idle = False
        absent = {}

        def read(self):
            return {"toy:0": DeviceReading(sum(USED.values()), peak=PEAK[0])}

        def used(self, device):
            return None

        def begin_peaks(self):
            PEAK[0] = sum(USED.values())

        def stop(self):
            pass

    class EmptyCache:
        collects = False

        def steps(self):
            USED["cached"] = 0
            yield

    class Toy(Framework):
        name = "toy"
        arrays = StandInArrays()
        devices = Devices()

        def settle_steps(self):
            return [EmptyCache()]

    class Given(Toy):
        MEMBER

    def pytest_gpuleak_arrays(config):
        return [Given()]
"""
SUITE = """
    import pytest
    from conftest import take
    KEPT = []

    def test_raw():
        take(2**21)

    def test_array():
        KEPT.append(Buffer(2**21, "toy:0"))
        take(2**21)

    def test_cached():
        take(2**21, "cached")

    def test_clean():
        pass

    def test_failed():
        assert not KEPT
"""
SHORT = """
    from conftest import take
    KEPT = []

    def test_both():
        KEPT.append(Buffer(2**21, "toy:0"))
        take(2**22)

    def test_cached():
        take(2**21, "cached")
"""
VERDICTS = {
    "test_raw": "leaked", "test_array": "leaked", "test_cached": "clean", "test_clean": "clean", "test_failed": "unchecked",
}  # fmt: skip
BUDGETS = """
    import pytest
    from conftest import take, USED

    @pytest.mark.max_gpu_mb(1)
    def test_over():
        take(2**21)
        USED["raw"] -= 2**21

    @pytest.mark.max_gpu_mb(4)
    def test_under():
        take(2**21)
        USED["raw"] -= 2**21
"""


def write(pytester: pytest.Pytester, member: str) -> None:
    (pytester.path / "conftest.py").write_text(
        textwrap.dedent(CONFTEST).replace("MEMBER", textwrap.dedent(member).strip().replace("\n", "\n    "))
    )


def lines_on(found: Run, text: str) -> list[str]:
    """The lines of the summary, and the warnings, that have a text: each fault is told in one of them."""
    lines = [line.strip() for line in found.result.outlines]
    told = [line for line in lines if line.startswith("gpu-leak: ") or "PytestWarning" in line]
    return [line for line in told if text in line and not line.startswith("gpu-leak: the check itself failed ")]


@pytest.mark.parametrize("plugin", ["--gpu-leak", "--strict-markers"])
def test_its_devices_are_held_to_budgets(run: Runner, pytester: pytest.Pytester, plugin: str) -> None:
    write(pytester, "pass")
    found = run(BUDGETS, plugin=plugin)
    found.result.assert_outcomes(failed=1, passed=1)
    found.result.stdout.fnmatch_lines(["*2.0 MiB*toy:0*"])


def test_its_devices_and_settle_steps_count_and_what_its_members_say_is_used(
    run: Runner, pytester: pytest.Pytester
) -> None:
    member = """
    def graph_size(self, arrays, budget):
        return Autograd(7, 5, 4096)

    def allocation_history(self):
        return History()

    def keep_states(self):
        value = STATE[0]
        return [lambda: STATE.__setitem__(0, value)]
    """
    write(pytester, member)
    path = pytester.path / "conftest.py"
    history = """
    STATE = [0]

    class History:
        def __enter__(self): pass
        def __exit__(self, *exception): pass
        def save(self, folder, nodeid): pass
        def blocks_alive(self, device, is_user_file):
            return (Contribution(f"{device} allocated by the toy", 2**21),)
    """
    path.write_text(textwrap.dedent(history) + path.read_text())
    suite = textwrap.dedent(SUITE) + "\ndef test_state():\n    import conftest\n    assert conftest.STATE == [1]\n"
    found = run(suite.replace("def test_raw():\n", "def test_raw():\n    import conftest; conftest.STATE[0] += 1\n"))
    assert found.verdicts == {**VERDICTS, "test_state": "clean"}
    autograd = {"nodes": 7, "saved_tensors": 5, "saved_bytes": 4096, "cut": False}
    assert found.finding("test_array")["autograd"] == autograd
    assert found.result.ret == 1
    raw, array = found.finding("test_raw"), found.finding("test_array")
    assert (raw["kind"], raw["device"], raw["bytes_per_run"]) == ("unattributed", "toy:0", 2**21)
    assert (array["kind"], array["device"], array["bytes_per_run"]) == ("growing", "toy:0", 2**21)
    (part,) = raw["contributions"]
    assert (part["text"], part["bytes"]) == ("toy:0 allocated by the toy", 2**21)
    memory = found.tests["test_raw"]["memory"]["toy:0"]
    assert memory["allocated_after"] - memory["allocated_before"] == 2**21
    assert found.report["faults"] == []


DEVICES = {
    "raise": ("raise OSError('bus error')", "OSError: bus error"),
    "skip": ("import pytest; pytest.skip('no device')", "raised Skipped: no device"),
    "are a list": ("return []", "returned an object of type list, accepted is a dict"),
    "are None": ("return None", "returned None, accepted is a dict"),
    "have no reading": ("return {'toy:0': 5}", "returned 5, accepted is a DeviceReading"),
    "are below 0": ("return {'toy:0': DeviceReading(-1)}", "returned -1, accepted is a number, 0 or more"),
    "have a text for a size": ("return {'toy:0': DeviceReading(1, reserved='2')}", "returned '2'"),
    "are the host": ("return {'host': DeviceReading(1)}", "returned the device 'host'"),
    "have no name": ("return {0: DeviceReading(1)}", "returned 0, accepted is a text"),
}


def add_frameworks(pytester: pytest.Pytester, members: dict[str, str]) -> None:
    """Give the conftest.py a framework for each of these members, by its name, behind the one that is sound."""
    lines = ["", "", "def pytest_gpuleak_arrays(config):", "    return [Toy(), *OTHERS]", "", "OTHERS = []"]
    for name, member in members.items():
        body = textwrap.indent(member, "    ")
        lines += [
            "",
            f"class Other(Framework):\n    name, arrays = {name!r}, StandInArrays()\n{body}",
            "OTHERS.append(Other())",
        ]
    path = pytester.path / "conftest.py"
    path.write_text(path.read_text() + "\n".join(lines) + "\n")


def test_devices_that_fail_are_not_watched(run: Runner, pytester: pytest.Pytester) -> None:
    write(pytester, "pass")
    devices = "class Bad(Devices):\n    def read(self): {}\ndevices = Bad()"
    add_frameworks(pytester, {f"which {name}": devices.format(body) for name, (body, _) in DEVICES.items()})
    for suite, outcomes in ((SHORT, {"passed": 2}), (BUDGETS, {"passed": 1, "failed": 1})):
        found = run(suite)
        found.result.assert_outcomes(**outcomes)
        assert suite is BUDGETS or found.verdicts == {"test_both": "leaked", "test_cached": "clean"}
        for name, (_, text) in DEVICES.items():
            (line,) = lines_on(found, f"the devices of the framework 'which {name}' failed: ")
            assert text in line


def test_arrays_are_judged_where_the_devices_fail(run: Runner, pytester: pytest.Pytester) -> None:
    write(pytester, "class Bad(Devices):\n    def read(self): raise OSError('bus error')\n\ndevices = Bad()")
    found = run(SUITE)
    assert found.verdicts == {**VERDICTS, "test_raw": "clean"}
    (line,) = lines_on(found, "framework 'toy'")
    assert line == "gpu-leak: the devices of the framework 'toy' failed: OSError: bus error"
    run(BUDGETS).result.assert_outcomes(passed=2)


def test_devices_that_fail_take_no_others_along(run: Runner, pytester: pytest.Pytester) -> None:
    write(pytester, "class Bad(Devices):\n    def begin_peaks(self): raise OSError('no peaks')\n\ndevices = Bad()")
    path = pytester.path / "conftest.py"
    second = "\n\nclass Second(Toy):\n    name = 'second'\n\ndef pytest_gpuleak_arrays(config):\n    return [Given(), Second()]\n"
    path.write_text(path.read_text() + second)
    found = run(BUDGETS)
    found.result.assert_outcomes(failed=1, passed=1)
    (line,) = lines_on(found, "not watched")
    assert "toy:0 of the devices of the framework 'second' not watched" in line


HISTORY = """def allocation_history(self):
    class History:
        def __enter__(self): pass
        def __exit__(self, *exception): pass
        def blocks_alive(self, device, is_user_file): return {}
    return History()"""
FINDER = """def reference_finders(self):
    class Finder:
        def owner_counter(self): return {}
        def take_census(self, budget): return {}
        def held_alone(self, arrays): return set()
        def may_close_rings(self, arrays): return False
        def root_of(self, value): return ""
    return [Finder()]"""
MEMBERS = {
    "devices lack methods": ("devices = object()", "object has no read and no used and no begin_peaks and no stop"),
    "settle_steps raises": ("def settle_steps(self): raise ValueError('no stream')", "ValueError: no stream"),
    "settle_steps is None": ("def settle_steps(self): return None", "'NoneType' object is not iterable"),
    "a step raises": (
        "def settle_steps(self):\n    step = EmptyCache()\n    step.steps = lambda: iter([1 / 0])\n    return [step]",
        "ZeroDivisionError",
    ),
    "steps never end": (
        "def settle_steps(self):\n    step = EmptyCache()\n    step.steps = lambda: iter(int, 1)\n    return [step]",
        "yields more than 100 steps",
    ),
    "reference_finders raises": ("def reference_finders(self): raise ValueError('no graph')", "no graph"),
    "a finder lacks methods": ("def reference_finders(self): return [object()]", "object has no owner_counter and no take_census"),
    "unread_arrays raises": ("def unread_arrays(self, devices): raise ValueError('none')", "ValueError: none"),
    "unread_arrays is a list": ("def unread_arrays(self, devices): return []", "accepted is a dict"),
    "unread_arrays are texts": ("def unread_arrays(self, devices): return {'toy:0': ['x']}", "accepted are its arrays"),
    "unread_arrays of others": ("def unread_arrays(self, devices): return {'cuda:9': []}", "was not asked for"),
    "graph_size raises": ("def graph_size(self, arrays, budget): raise ValueError('cut')", "ValueError: cut"),
    "graph_size is a number": ("def graph_size(self, arrays, budget): return 5", "returned 5, accepted is a Autograd"),
    "graph_size is below 0": ("def graph_size(self, arrays, budget): return Autograd(-1, 0, 0)", "returned -1"),
    "allocation_history raises": ("def allocation_history(self): raise ValueError('off')", "ValueError: off"),
    "allocation_history is a text": ("def allocation_history(self): return 'x'", "AttributeError"),
    "a history lacks a method": (HISTORY.format("[]").replace("blocks_alive", "blocks"), "no attribute 'blocks_alive'"),
    "an owner counter is None": (FINDER.format("None", "None"), "'NoneType' object is not callable"),
    "blocks are a number": (HISTORY.format("5"), "'int' object is not iterable"),
    "blocks are numbers": (HISTORY.format("[5]"), "returned 5, accepted is a Contribution"),
    "a block is no text": (HISTORY.format("[Contribution(5, 5)]"), "returned 5, accepted is a text"),
    "a block is below 0": (HISTORY.format("[Contribution('x', -5)]"), "returned -5"),
    "keep_states raises": ("def keep_states(self): raise ValueError('no state')", "ValueError: no state"),
    "a state cannot be put back": ("def keep_states(self): return [lambda: 1 / 0]", "ZeroDivisionError"),
    "in_place raises": ("def in_place(self): raise ValueError('gone')", "ValueError: gone"),
    "in_place is None": ("def in_place(self): return None", "NoneType"),
    "is_distributed raises": ("def is_distributed(self): raise ValueError('no group')", "ValueError: no group"),
    "is_distributed is a text": ("def is_distributed(self): return 'yes'", "returned 'yes', accepted is a bool"),
    "broken raises": ("@property\ndef broken(self): raise ValueError('who knows')", "ValueError: who knows"),
    "broken is a number": ("@property\ndef broken(self): return 1", "returned 1, accepted is a text"),
    "a member skips": ("def keep_states(self):\n    import pytest; pytest.skip('no state')", "pytest.skip(): no state"),
}  # fmt: skip


def test_members_that_fail_or_lie_cost_a_line_each(run: Runner, pytester: pytest.Pytester) -> None:
    write(pytester, "pass")
    add_frameworks(pytester, {name: member for name, (member, _) in MEMBERS.items()})
    found = run(SHORT)
    assert found.verdicts == {"test_both": "leaked", "test_cached": "clean"}
    assert {finding["device"] for finding in found.tests["test_both"]["findings"]} == {"toy:0"}
    found.result.assert_outcomes(passed=2, warnings=len(MEMBERS))
    for name, (_, text) in MEMBERS.items():
        (line,) = lines_on(found, f"of the framework {name!r} failed: ")
        assert text in line


def test_a_settle_step_that_hangs_is_stopped(
    run: Runner, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CHECK_LIMIT_S", 0.2)
    member = """
    def settle_steps(self):
        import time
        step = EmptyCache()
        step.steps = lambda: (time.sleep(0.01) for _ in iter(int, 1) if time.sleep(5))
        return [step]
    """
    write(pytester, member)
    found = run(SHORT)
    assert found.verdicts == {"test_both": "leaked", "test_cached": "leaked"}
    (line,) = lines_on(found, "toy'")
    assert line == "gpu-leak: a settle step of the framework 'toy' was stopped after 0.2 s"


INCOMPLETE = """
    from tests.support.standin import Buffer, StandInArrays

    class Half:
        name = "half"
        arrays = StandInArrays()

    def pytest_gpuleak_arrays(config):
        return [Half(), StandInArrays()]
"""


def test_one_that_lacks_members_is_not_watched(run: Runner, pytester: pytest.Pytester) -> None:
    (pytester.path / "conftest.py").write_text(textwrap.dedent(INCOMPLETE))
    found = run("KEPT = []\n\ndef test_array():\n    KEPT.append(Buffer(2**21))\n")
    assert found.verdicts == {"test_array": "leaked"}
    (fault,) = found.report["faults"]
    assert fault.startswith("the hook pytest_gpuleak_arrays failed: TypeError: Half has no ")
    assert "derived from pytest_gpuleak.adapters.protocol.Framework" in fault


@pytest.mark.parametrize("arrays", ["None", "object()", "property(lambda self: 1 / 0)"])
def test_one_whose_arrays_are_none_is_not_watched(run: Runner, pytester: pytest.Pytester, arrays: str) -> None:
    write(pytester, f"arrays = {arrays}")
    found = run(SUITE)
    assert set(found.verdicts.values()) == {"clean", "unchecked"}
    (fault,) = found.report["faults"]
    assert fault.startswith("the hook pytest_gpuleak_arrays failed: ")


def test_one_that_says_it_is_broken_leaves_the_rest_unchecked(run: Runner, pytester: pytest.Pytester) -> None:
    write(pytester, "@property\ndef broken(self): return 'its library was loaded twice'")
    found = run(SHORT, apart=True)  # the heap stays frozen for good
    found.result.assert_outcomes(passed=2)
    assert set(found.verdicts.values()) == {"unchecked"}
    (line,) = lines_on(found, "nothing was checked")
    assert line.startswith("gpu-leak: toy: its library was loaded twice: nothing was checked from ")


def test_arrays_alone_may_have_an_attribute_of_that_name(run: Runner, pytester: pytest.Pytester) -> None:
    conftest = "from tests.support.standin import StandInArrays\n\nclass Arrays(StandInArrays):\n    arrays = ()\n\n"
    (pytester.path / "conftest.py").write_text(f"{conftest}def pytest_gpuleak_arrays(config): return [Arrays()]\n")
    found = run("KEPT = []\n\ndef test_array():\n    KEPT.append(Buffer(2**21))\n")
    assert found.verdicts == {"test_array": "leaked"}
    assert found.report["faults"] == []
