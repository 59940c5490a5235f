"""A test that ends wider fixtures is judged as any other, though its re-run sets these up again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Runner

pytestmark = pytest.mark.newest

BODIES = {
    "shifts": "LAST[1:] = LAST[:1]; LAST[:1] = [Buffer(16)]",
    "fills_a_cache_beside_a_ring": (
        "DONE.setdefault(len(LAST), Buffer(24)); ring = [Buffer(16)]; ring.append(ring); LAST.append(ring); LAST[:-1] = []"
    ),
    "leaks_beside_what_a_fixture_holds": "used.kept.append(Buffer(16)); KEPT.append(Buffer(8))",
    "leaks_beside_what_a_fixture_holds_in_a_cycle": "used.kept.append([Buffer(16), used]); KEPT.append(Buffer(8))",
    "replaces_beside_what_a_fixture_holds": "used.last = Buffer(16); SLOT[:] = [Buffer(8)]",
    "replaces": "SLOT[:] = [Buffer(8)]",
}
GROWS = {name for name in BODIES if not name.startswith("replaces")}
"""What adds in its second run: a third run of a test that shifts or fills a cache would not."""


@pytest.mark.interpreter
@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("where", ["first", "last", "alone"])
def test_a_verdict_does_not_depend_on_whether_fixtures_end_with_the_test(run: Runner, where: str, name: str) -> None:
    it = f"""
    def test_it(used):
        {BODIES[name]}
    """
    other = """
    def test_other(used):
        pass
    """
    tests = {"first": it + other, "last": other + it, "alone": it}[where]
    found = run(
        f"""
    import types
    import pytest
    LAST, DONE, KEPT, SLOT = [], {{}}, [], []

    @pytest.fixture(scope="session", autouse=True)
    def unrelated():
        return Buffer(64)

    @pytest.fixture(scope="module")
    def used():
        return types.SimpleNamespace(last=None, kept=[], table=Buffer(32))
    {tests}"""
    )
    assert found.verdicts["test_it"] == ("leaked" if name in GROWS else "noted")
    kinds = {one["kind"] for one in found.tests["test_it"]["findings"] if one["failed"]}
    assert kinds == ({"growing"} if name in GROWS else set())
