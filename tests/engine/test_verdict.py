"""Verdicts are pure: readings fed in, findings out."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuleak.engine.judge.arrays import conclude, judge, judge_cycles
from pytest_gpuleak.model.evidence import Evidence, Survivor
from pytest_gpuleak.model.findings import Holder, PathStep
from pytest_gpuleak.model.fingerprint import fingerprint
from pytest_gpuleak.model.policy import Policy
from pytest_gpuleak.model.readings import ArrayReading

MIB = 2**20


def survivor(run: int, root: str = "app.LIST", size: int = 100, device: str = "cpu", place: str = "[*]") -> Survivor:
    reading = ArrayReading(0, (size,), "uint8", device, size, 0, size)
    return Survivor(run, reading, holder=Holder("module", root, root + place), pattern=root + place)


def evidence(survivors: list[Survivor], *alive: set[int]) -> Evidence:
    return Evidence(tuple(survivors), tuple(frozenset(indices) for indices in alive))


def kinds(found: Evidence, policy: Policy | None = None) -> dict[str, tuple[str, int, bool]]:
    findings = judge(found, policy or Policy())
    return {
        finding.holder.root if finding.holder else "": (finding.kind, finding.count, finding.failed)
        for finding in findings
    }


def test_one_more_each_time_grows() -> None:
    found = evidence([survivor(0), survivor(1)], {0}, {0, 1})
    assert kinds(found) == {"app.LIST": ("growing", 1, True)}


def test_the_same_one_stays() -> None:
    assert kinds(evidence([survivor(0)], {0}, {0})) == {"app.LIST": ("retained", 1, False)}


def test_one_for_one() -> None:
    assert kinds(evidence([survivor(0), survivor(1)], {0}, {1})) == {"app.LIST": ("retained", 1, False)}


def test_one_for_two_grows() -> None:
    found = evidence([survivor(0), survivor(1), survivor(1)], {0}, {1, 2})
    assert kinds(found)["app.LIST"][0] == "growing"


def test_growth_must_come_with_every_re_run() -> None:
    members = [survivor(0), survivor(1), survivor(2)]
    assert kinds(evidence(members, {0}, {0, 1}, {0, 1, 2}))["app.LIST"][0] == "growing"
    assert kinds(evidence(members, {0}, {0, 1}, {1, 2}))["app.LIST"][0] == "retained"
    assert kinds(evidence(members[:2], {0}, {0, 1}, {0, 1}))["app.LIST"][0] == "retained"


def test_what_is_named_anew_in_each_run_grows() -> None:
    members = [survivor(run, f"made_{run}.VALUE") for run in range(3)]
    found = evidence(members, {0}, {0, 1}, {0, 1, 2})
    assert kinds(found) == {"made_0.VALUE": ("growing", 1, True)}
    # One that replaces the other is no growth, and others that stay are none of those that grow.
    assert kinds(evidence(members, {0}, {1}, {2})) == {"made_2.VALUE": ("retained", 1, False)}
    other = [*members, survivor(0, "other.VALUE")]
    assert kinds(evidence(other, {0, 3}, {0, 1, 3}, {0, 1, 2, 3}))["other.VALUE"][0] == "retained"


def test_dead_ones_are_matched_to_the_slot_not_to_the_list() -> None:
    slot, rows = "app.SLOT", "app.LIST"
    members = [survivor(0, slot), survivor(0, rows), survivor(1, slot), survivor(1, rows)]
    members[0] = members[0]._replace(holder=None, pattern="")  # gone before anybody looked
    assert kinds(evidence(members, {0, 1}, {1, 2, 3})) == {slot: ("retained", 1, False), rows: ("growing", 1, True)}


def test_what_a_re_run_lets_go_for_good_is_retained() -> None:
    assert kinds(evidence([survivor(0, size=2 * MIB)], {0}, set())) == {"app.LIST": ("retained", 1, True)}


def test_not_run_again() -> None:
    assert kinds(evidence([survivor(0)], {0})) == {"app.LIST": ("unconfirmed", 1, False)}
    assert kinds(evidence([survivor(0, size=MIB)], {0})) == {"app.LIST": ("unconfirmed", 1, True)}


def test_the_strict_rule() -> None:
    found = evidence([survivor(0), survivor(0)], {0, 1})
    assert kinds(found, Policy(confirm=0))["app.LIST"] == ("unconfirmed", 2, True)
    assert kinds(found, Policy(confirm=0, growing_tensors=2, growing_bytes=None))["app.LIST"][2] is False


def test_residue_is_summed_by_device() -> None:
    half = MIB // 2
    same = evidence([survivor(0, "a.A", half), survivor(0, "a.B", half)], {0, 1}, {0, 1})
    assert {failed for _, _, failed in kinds(same).values()} == {True}
    apart = evidence([survivor(0, "a.A", half, "gpu:0"), survivor(0, "a.B", half, "gpu:1")], {0, 1}, {0, 1})
    assert {failed for _, _, failed in kinds(apart).values()} == {False}


@pytest.mark.parametrize("runs", [1, 2])
def test_what_the_runner_keeps_does_not_grow_and_is_summed_with_the_rest(runs: int) -> None:
    """A re-run has an instance of its own: what the first one keeps is the first run's alone."""
    item, frame, rest = survivor(0, "TestIt instance", MIB // 2), survivor(0, "frame"), survivor(0, size=MIB // 2)
    found = dataclasses.replace(evidence([item, frame, rest], *[{0, 1, 2}] * runs), kept={0: "item", 1: "frames"})
    kind = "unconfirmed" if runs == 1 else "retained"
    assert kinds(found) == {"TestIt instance": ("retained", 1, True), "app.LIST": (kind, 1, True)}
    alone = dataclasses.replace(found, alive=(frozenset({0, 1}),) * runs)
    assert kinds(alone) == {"TestIt instance": ("retained", 1, False)}


def test_where_the_first_run_decides_what_the_item_keeps_fails_too() -> None:
    found = dataclasses.replace(evidence([survivor(0), survivor(0, "frame")], {0, 1}), kept={0: "item", 1: "frames"})
    assert kinds(found, Policy(confirm=0)) == {"app.LIST": ("unconfirmed", 1, True)}


@pytest.mark.parametrize(
    ("tensors", "size", "failed"),
    [
        (0, 0, True),
        (2, 1000, False),
        (1, 1000, True),
        (2, 199, True),
        (None, 200, False),
        (None, 199, True),
        (2, None, False),
    ],
)
def test_either_limit_of_growth(tensors: int | None, size: int | None, failed: bool) -> None:
    found = evidence([survivor(0), survivor(0), survivor(1), survivor(1)], {0, 1}, {0, 1, 2, 3})
    policy = Policy(growing_tensors=tensors, growing_bytes=size)
    assert kinds(found, policy)["app.LIST"] == ("growing", 2, failed)


def test_memory_of_others_weighs_nothing() -> None:
    view = survivor(0, size=5 * MIB)._replace(owned=False)
    (finding,) = judge(evidence([view], {0}, {0}), Policy())
    assert (finding.bytes, finding.failed, finding.tensors[0].storage_bytes) == (0, False, 5 * MIB)


def test_allowed_fails_nothing() -> None:
    findings = judge(evidence([survivor(0), survivor(1)], {0}, {0, 1}), Policy())
    verdict, reported = conclude(findings, Policy(allowed="known"))
    assert (verdict, [finding.failed for finding in reported]) == ("allowed", [False])
    assert conclude((), Policy(allowed="known")) == ("clean", ())


def test_fingerprints_know_names_alone() -> None:
    def of(root: str, edge: str, kind: str = "growing") -> str:
        return fingerprint(kind, Holder("module", root, root + edge, (PathStep(edge, "list"),)))

    assert of("app.LIST", "[0]") == of("app.LIST", "[17]")
    assert of("app.LIST", "['/tmp/a/1']") == of("app.LIST", "['/home/b/2']")
    assert of("app.LIST", "['loss']") != of("app.LIST", "['accuracy']")
    assert of("app.LIST", "[0]") != of("app.OTHER", "[0]")
    assert of("app.LIST", "[0]") != of("app.LIST", "[0]", "retained")
    assert int(fingerprint("growing", None), 16) >= 0


@pytest.mark.slow
@given(
    kept=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    slots=st.lists(st.integers(1, 5), max_size=6),
    runs=st.integers(1, 3),
)
def test_lists_grow_and_slots_do_not(kept: list[int], slots: list[int], runs: int) -> None:
    """Whatever is appended on each run grows; whatever is overwritten does not; nothing is lost or counted twice."""
    survivors: list[Survivor] = []
    alive: list[set[int]] = []
    living: set[int] = set()
    for run in range(runs + 1):
        living = {index for index in living if survivors[index].holder and "LIST" in survivors[index].pattern}
        for size in kept:
            living.add(len(survivors))
            survivors.append(survivor(run, "app.LIST", size))
        for number, size in enumerate(slots):
            living.add(len(survivors))
            survivors.append(survivor(run, "app.SLOTS", size, place=f"['{'x' * (number + 1)}']"))
        alive.append(set(living))
    findings = judge(evidence(survivors, *alive), Policy())
    by_kind = {finding.kind: finding for finding in findings}
    assert by_kind["growing"].count == len(kept)
    assert by_kind["growing"].bytes == sum(kept)
    assert by_kind["growing"].bytes_per_run == sum(kept)
    assert sum(finding.count for finding in findings if finding.kind == "retained") == len(slots)


def test_arrays_under_names_beside_the_one_to_cut_are_named_too() -> None:
    def at(size: int, *edges: str) -> Survivor:
        steps = tuple([PathStep(edge, "dict" if edge.startswith("[") else "app.State") for edge in edges])
        text = "app.STATE" + "".join(edges)
        one = survivor(0, "app.STATE", size)
        return one._replace(holder=Holder("module", "app.STATE", text, steps), pattern=text)

    def beside(*members: Survivor) -> list[str]:
        (found,) = judge(evidence(list(members), set(range(len(members))), set(range(len(members)))), Policy())
        return [other.text for other in found.other_holders]

    assert beside(at(9, ".x"), at(8, ".y"), at(7, ".y")) == ["app.STATE.y"]
    assert beside(at(9, "['x']"), at(8, "['y']")) == ["app.STATE['y']"]
    assert beside(at(9, ".run1"), at(8, ".run2")) == []  # numbered alike
    assert beside(at(9, "[0]"), at(8, "[1]")) == []  # who empties the list lets both go
    assert beside(at(9, ".log", "[0]"), at(8, ".log", "[1]"), at(7, ".last")) == ["app.STATE.last"]
    assert beside(at(9, ".net", ".weight"), at(8, ".net", ".bias")) == ["app.STATE.net.bias"]
    assert len(beside(*[at(9, f".{name}") for name in "abcdefgh"])) == 3
    model = [PathStep(f".{name}", "torch.nn.Linear (torch.nn.Module)") for name in ("weight", "bias")]
    parts = [
        survivor(0, "app.NET")._replace(holder=Holder("module", "app.NET", f"app.NET{one.edge}", (one,)))
        for one in model
    ]
    assert beside(*parts) == []  # the model is let go of as a whole


@pytest.mark.parametrize("read", [1, 2])
def test_the_cycle_of_any_view_is_that_of_their_memory(read: int) -> None:
    views = [ArrayReading(identity, (4,), "uint8", "cpu", 4, 7, 8) for identity in (1, 2)]
    ring = Holder("unknown", "a reference cycle", "app.Node.parent")
    (found,) = judge_cycles(views, Policy(), {read: ring})
    assert (found.holder, found.count, found.bytes) == (ring, 1, 8)
