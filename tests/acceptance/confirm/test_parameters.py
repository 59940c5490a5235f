"""What tests leave in the objects that they are parametrized with is judged by each test's own runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.acceptance.confirm.test_harness import COUNTED, runs

if TYPE_CHECKING:
    from tests.conftest import Runner


OBJECTS = f"""{COUNTED}
    import pytest

    class Module:
        def __init__(self):
            self.inner = {{"deep": {{}}}}
            self.history = []

        def keep_last(self):
            self.inner["deep"]["last"] = Buffer()

        def append(self):
            self.history.append(Buffer())
"""


def test_each_is_run_again(run: Runner, pytester: pytest.Pytester) -> None:
    found = run(
        f"""{OBJECTS}
    @pytest.mark.parametrize("module", [Module() for _ in range(3)])
    def test_it(module):
        note("it")
        module.keep_last()

    @pytest.mark.gpu_leak(confirm=0)
    @pytest.mark.parametrize("module", [Module() for _ in range(3)])
    def test_never(module):
        note("never")
        module.keep_last()
    """
    )
    assert set(found.verdicts.values()) == {"noted", "leaked"}
    assert all(test["findings"] for test in found.tests.values())
    findings = [test["findings"][0] for test in found.tests.values() if test["verdict"] == "noted"]
    assert len(findings) == 3
    assert {(one["kind"], one["count"], one["bytes"]) for one in findings} == {("retained", 1, 4096)}
    assert all(one["holder"]["text"].endswith(".inner['deep']['last']") for one in findings), findings
    assert runs(pytester) == {"it": 3 * 2, "never": 3}


@pytest.mark.slow
def test_each_function_is_judged_by_its_own_and_what_differs_in_a_later_test_fails(
    run: Runner, pytester: pytest.Pytester
) -> None:
    found = run(
        f"""{OBJECTS}
    MODULES = [Module() for _ in range(3)]

    @pytest.mark.parametrize("module", MODULES)
    def test_last(module):
        note("last")
        module.keep_last()

    @pytest.mark.parametrize("module", MODULES)
    def test_all(module):
        note("all")
        module.append()

    @pytest.mark.parametrize("module", [Module() for _ in range(3)])
    def test_elsewhere(module, request):
        module.keep_last()
        if request.node.name.endswith("2]"):
            KEPT.append(Buffer())

    @pytest.mark.parametrize("module", [Module() for _ in range(3)])
    def test_large(module, request):
        module.last = Buffer(2**20 if request.node.name.endswith("2]") else 16)
    """
    )
    assert {name: verdict for name, verdict in found.verdicts.items() if "last" in name or "all" in name} == {
        f"test_last[module{n}]": "noted" for n in range(3)
    } | {f"test_all[module{n}]": "leaked" for n in range(3)}
    assert runs(pytester) == {"last": 6, "all": 9}
    for name in ("elsewhere", "large"):
        assert [found.verdicts[f"test_{name}[module{n}]"] for n in (1, 2)] == ["noted", "leaked"], name
