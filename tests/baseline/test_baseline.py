"""Baselines, without a run: what matches what, what is stale, what an update changes, and the file."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuleak.baseline.file import KINDS, Baseline, dump_baseline, load_baseline
from pytest_gpuleak.baseline.matching import function_of
from pytest_gpuleak.baseline.toml_file import MAX_BYTES, UnusableBaseline
from pytest_gpuleak.baseline.update import Seen, apply_baseline, update_baseline
from pytest_gpuleak.model.findings import Finding, FindingKind, FixtureRecord, Holder, HolderKind, KnownLeak
from pytest_gpuleak.model.fingerprint import fingerprint
from tests.reports.conftest import MIB, Make

if TYPE_CHECKING:
    import pathlib

    from pytest_gpuleak.model.records import RunReport


def leak(kind: FindingKind = "growing", root: str = "app.HISTORY", size: int = 4 * MIB, **changes: Any) -> Finding:
    holder_kind: HolderKind = changes.pop("holder_kind", "module")
    holder = Holder(holder_kind, root, f"{root}[0]") if root else None
    values = {"kind": kind, "bytes": size, "holder": holder, "fingerprint": fingerprint(kind, holder)}
    return Make.finding(**{**values, **changes})


def run_of(*tests: tuple[str, tuple[Finding, ...]], **changes: Any) -> RunReport:
    return Make.report(*(Make.test(nodeid, *findings) for nodeid, findings in tests), **changes)


def fixture_of(*findings: Finding, name: str = "model", worker: str = "main") -> FixtureRecord:
    return FixtureRecord(name, "module", "test_a.py", findings, worker=worker)


def adopted(report: RunReport, **changes: Any) -> Baseline:
    baseline, _ = update_baseline(Baseline((), **changes), report)
    return baseline


ONE = run_of(("test_a.py::test_x[1]", (leak(),)), ("test_a.py::test_y", ()))


def verdicts(report: RunReport) -> list[str]:
    return [record.verdict for record in report.tests]


@pytest.mark.parametrize(
    ("nodeid", "function"),
    [
        ("a/test_a.py::test_x", "a/test_a.py::test_x"),
        ("a/test_a.py::test_x[1-cuda]", "a/test_a.py::test_x"),
        ("a/test_a.py::TestX::test_y[a::b[1]]", "a/test_a.py::TestX::test_y"),
        ("a/test_a.py::test_x[]]", "a/test_a.py::test_x"),
        ("a[1]/[b].py::test_x", "a[1]/[b].py::test_x"),
        ("a[1]/[b].py::test_x[2]", "a[1]/[b].py::test_x"),
        ("test_a.py::test_x[user@host]", "test_a.py::test_x"),
        ("test_a.py::test_x[1]@group", "test_a.py::test_x"),
        ("test_a.py::test_x@group", "test_a.py::test_x"),
        ("test_a.py::test_é[1]", "test_a.py::test_é"),
        ("cases.yaml::log in[2]", "cases.yaml::log in"),
        ("cases.yaml::[2]", "cases.yaml::[2]"),
        ("folder[1]", "folder[1]"),
        ("", ""),
    ],
)
def test_a_function_is_its_id_without_parameters(nodeid: str, function: str) -> None:
    assert function_of(nodeid) == function


@given(st.text(), st.sampled_from(["a/test_a.py", "a[1]/b.py", "x@y/t.py"]), st.sampled_from(["", "@group"]))
def test_whatever_the_parameter_the_function_is_the_same(parameter: str, file: str, group: str) -> None:
    assert function_of(f"{file}::TestX::test_y[{parameter}]{group}") == f"{file}::TestX::test_y"


def test_a_known_leak_passes_and_gives_its_reason() -> None:
    baseline = adopted(ONE)
    baseline = Baseline((dataclasses.replace(baseline.entries[0], reason="waits for 2.1"),))
    judged = apply_baseline(ONE, baseline)
    (found,) = judged.tests[0].findings
    assert (found.known, found.failed, found.evidence_lines[0]) == (True, False, "known (baseline): waits for 2.1")
    assert verdicts(judged) == ["noted", "clean"]
    assert {key: judged.summary[key] for key in ("leaked", "noted", "clean", "known", "stale")} == {
        "leaked": 0,
        "noted": 1,
        "clean": 1,
        "known": 1,
        "stale": 0,
    }


def test_a_new_leak_of_a_listed_test_fails() -> None:
    report = run_of(("test_a.py::test_x[1]", (leak(), leak(root="app.OTHER"))))
    old, new = apply_baseline(report, adopted(ONE)).tests[0].findings
    assert (old.known, new.failed, new.evidence_lines[0]) == (
        True,
        True,
        "new (baseline): the baseline does not list it",
    )


@pytest.mark.parametrize(
    ("tolerance", "size", "passes"),
    [(0.1, 110, True), (0.1, 111, False), (0.0, 100, True), (0.0, 101, False), (0.29, 129, True), (0.29, 130, False)],
)
def test_growth_passes_up_to_the_tolerance(tolerance: float, size: int, passes: bool) -> None:
    baseline = adopted(run_of(("test_a.py::test_x", (leak(size=100),))), tolerance=tolerance)
    (found,) = apply_baseline(run_of(("test_a.py::test_x", (leak(size=size),))), baseline).tests[0].findings
    assert (found.known, found.failed) == (passes, not passes)
    if not passes:
        assert found.evidence_lines[0].startswith(
            f"grown (baseline): {size} bytes, {size - 100} % more than the 100 bytes"
        )


@pytest.mark.parametrize(
    ("nodeid", "changes", "known"),
    [
        ("test_a.py::test_x[another]", {}, True),
        ("test_a.py::test_x", {}, True),
        ("test_a.py::test_x[1]@group", {}, True),
        ("test_a.py::test_z", {}, False),
        ("test_a.py::test_x", {"device": "cuda:3"}, True),
        ("test_a.py::test_x", {"device": "cpu"}, False),
        ("test_a.py::test_x", {"root": "app.HISTORY['/tmp/pytest-7/x']"}, False),
        ("test_a.py::test_x", {"kind": "unconfirmed"}, True),
        ("test_a.py::test_x", {"kind": "retained"}, True),
        ("test_a.py::test_z", {"kind": "retained"}, False),
        ("test_a.py::test_x", {"kind": "cycle", "root": ""}, False),
        ("test_a.py::test_x", {"kind": "budget", "root": ""}, False),
    ],
)
def test_what_a_growing_leak_of_one_test_covers(nodeid: str, changes: dict[str, Any], known: bool) -> None:
    (found,) = apply_baseline(run_of((nodeid, (leak(**changes),))), adopted(ONE)).tests[0].findings
    assert found.known is known


def test_paths_and_numbers_in_a_holder_may_change() -> None:
    before = run_of(("test_a.py::test_x", (leak(root="app.CACHE['/tmp/pytest-of-a/pytest-1/x']"),)))
    after = run_of(("test_a.py::test_x", (leak(root="app.CACHE['/var/tmp/pytest-of-b/pytest-22/y']"),)))
    assert verdicts(apply_baseline(after, adopted(before))) == ["noted"]


@pytest.mark.parametrize(
    ("listed", "found", "known"),
    [
        ("unconfirmed", "growing", True),
        ("unconfirmed", "retained", True),
        ("retained", "unconfirmed", True),
        ("retained", "growing", False),
        ("cycle", "growing", False),
    ],
)
def test_which_kinds_are_the_same_leak(listed: FindingKind, found: FindingKind, known: bool) -> None:
    baseline = adopted(run_of(("test_a.py::test_x", (leak(listed),))))
    judged = apply_baseline(run_of(("test_a.py::test_x", (leak(found),))), baseline)
    assert verdicts(judged) == ["noted" if known else "leaked"]


@pytest.mark.parametrize("kind", ["retained", "unconfirmed"])
def test_who_was_first_to_fill_a_named_place_does_not_matter(kind: FindingKind) -> None:
    baseline = adopted(run_of(("test_a.py::test_x", (leak(kind),))))
    judged = apply_baseline(run_of(("test_a.py::test_x", ()), ("test_b.py::test_z", (leak(kind),))), baseline)
    assert (verdicts(judged), judged.stale) == (["clean", "noted"], ())


@pytest.mark.parametrize("changes", [{"root": ""}, {"holder_kind": "unknown"}, {"holder_kind": "native"}])
def test_a_place_without_a_name_is_the_test_s_own(changes: dict[str, Any]) -> None:
    baseline = adopted(run_of(("test_a.py::test_x", (leak("retained", **changes),))))
    same = apply_baseline(run_of(("test_a.py::test_x", (leak("retained", **changes),))), baseline)
    other = apply_baseline(run_of(("test_b.py::test_z", (leak("retained", **changes),))), baseline)
    assert (verdicts(same), verdicts(other)) == (["noted"], ["leaked"])


def test_two_findings_of_one_entry_are_added_up_on_each_device() -> None:
    # A fingerprint has no numbers of what counts up: two threads' are one entry.
    pair = (leak(root="thread 'Thread-1'", size=50), leak(root="thread 'Thread-2'", size=50))
    baseline = adopted(run_of(("test_a.py::test_x", pair)))
    assert [entry.bytes for entry in baseline.entries] == [100]
    more = run_of(("test_a.py::test_x", (*pair, leak(root="thread 'Thread-3'", size=50))))
    assert verdicts(apply_baseline(more, baseline)) == ["leaked"]
    elsewhere = dataclasses.replace(leak(root="thread 'Thread-3'", size=100), device="cuda:1")
    assert verdicts(apply_baseline(run_of(("test_a.py::test_x", (*pair, elsewhere))), baseline)) == ["noted"]


def test_a_root_whose_name_differs_by_a_digit_is_another_leak() -> None:
    baseline = adopted(run_of(("test_a.py::test_x", (leak(root="app.HISTORY_V1"),))))
    assert verdicts(apply_baseline(run_of(("test_a.py::test_x", (leak(root="app.HISTORY_V2"),))), baseline)) == [
        "leaked"
    ]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("thread 'ThreadPoolExecutor-0_1'", "thread 'ThreadPoolExecutor-12_3'"),
        ("app.__compiled_fn_3", "app.__compiled_fn_12_8fa0"),
        ("pytest item 'test_x[b1]'", "pytest item 'test_x[b2]'"),
        ("callback at 0x7f01", "callback at 0x7f02"),
        ("thread 'job-3f2504e0-4f89-11d3-9a0c-0305e82c3301'", "thread 'job-b4afd39c-25d4-40a3-8b5e-6a4f5ec36b17'"),
        ("app['7fc80b92cc90']", "app['55d0f1e2a4b8']"),
        ("app.session_9f86d081884c7d65", "app.session_cafebabedeadbeef"),
        ("open file '/tmp/x1/a'", "open file '/tmp/x2/a'"),
        (
            "cu.find_function('__torch__.app.Net.forward')",
            "cu.find_function('__torch__.app.___torch_mangle_7.Net.forward')",
        ),
    ],
)
def test_numbers_that_a_run_gives_are_no_part_of_a_root(one: str, other: str) -> None:
    baseline = adopted(run_of(("test_a.py::test_x", (leak(root=one),))))
    assert verdicts(apply_baseline(run_of(("test_a.py::test_x", (leak(root=other),))), baseline)) == ["noted"]


def test_the_same_device_index_does_not_matter_and_its_size_is_the_most() -> None:
    findings = (leak(size=100), dataclasses.replace(leak(size=70), device="cuda:1"))
    (entry,) = adopted(run_of(("test_a.py::test_x", findings))).entries
    assert (entry.device, entry.bytes) == ("cuda", 100)


@pytest.mark.parametrize("kind", ["growing", "retained", "unconfirmed"])
def test_how_often_a_worker_sets_a_fixture_up_does_not_matter(kind: FindingKind) -> None:
    # As `FixtureJudge` has it: set up once, its fingerprint is that of what was not confirmed.
    once = dataclasses.replace(leak("unconfirmed"), kind="retained")
    baseline = adopted(Make.report(fixtures=(fixture_of(once),)))
    judged = apply_baseline(Make.report(fixtures=(fixture_of(leak(kind), worker="gw1"),)), baseline)
    assert (judged.fixtures[0].findings[0].known, judged.summary["fixtures_leaked"]) == (True, 0)


def test_fixtures_of_one_holder_have_entries_of_their_own() -> None:
    pair = (fixture_of(leak("retained")), fixture_of(leak("retained"), name="other"))
    baseline = adopted(Make.report(fixtures=pair))
    assert [entry.fixture for entry in baseline.entries] == ["model", "other"]
    seen = Seen(fixtures=frozenset({("test_a.py", "model"), ("test_a.py", "other")}))
    judged = apply_baseline(Make.report(fixtures=pair[1:]), baseline, seen)
    assert [entry.fixture for entry in judged.stale] == ["model"]


def test_a_fixture_is_stale_only_if_it_was_set_up() -> None:
    baseline = adopted(Make.report(fixtures=(fixture_of(leak("retained")),)))
    assert apply_baseline(ONE, baseline, Seen()).stale == ()
    seen = Seen(fixtures=frozenset({("test_a.py", "model")}))
    assert apply_baseline(ONE, baseline, seen).stale == baseline.entries


def test_what_another_baseline_set_known_fails_without_it() -> None:
    judged = apply_baseline(apply_baseline(ONE, adopted(ONE)), Baseline(()))
    (found,) = judged.tests[0].findings
    assert (found.known, found.failed, len(found.evidence_lines), judged.summary["known"]) == (False, True, 1, 0)
    assert verdicts(judged) == ["leaked", "clean"]


def test_what_is_allowed_or_was_not_checked_stays_as_it_is() -> None:
    allowed = Make.test("test_a.py::test_x", leak(failed=False), verdict="allowed", allowed="a cache")
    unchecked = Make.test("test_a.py::test_y", leak("budget", ""), verdict="unchecked", outcome="failed")
    report = Make.report(allowed, unchecked)
    assert apply_baseline(report, adopted(ONE)).tests == report.tests
    assert adopted(report).entries == ()


def test_a_budget_is_not_recorded() -> None:
    assert adopted(run_of(("test_a.py::test_x", (leak("budget", ""),)))).entries == ()


def test_an_entry_is_stale_when_its_test_leaves_nothing() -> None:
    baseline = adopted(ONE)
    judged = apply_baseline(run_of(("test_a.py::test_x[2]", ())), baseline)
    assert (judged.stale, judged.summary["stale"]) == (baseline.entries, 1)


@pytest.mark.parametrize(
    "report",
    [
        run_of(("test_a.py::test_y", ())),
        Make.report(Make.test("test_a.py::test_x[1]", verdict="unchecked", outcome="failed")),
        Make.report(
            Make.test("test_a.py::test_x[1]"), Make.test("test_a.py::test_x[2]", verdict="unchecked", outcome="skipped")
        ),
        run_of(("test_a.py::test_x[1]", (leak(failed=False),))),
    ],
    ids=["it did not run", "it failed", "a parameter was skipped", "it still leaves what no longer fails"],
)
def test_an_entry_is_not_stale(report: RunReport) -> None:
    assert apply_baseline(report, adopted(ONE)).stale == ()


def test_the_last_attempt_decides_whether_a_test_was_checked() -> None:
    baseline = adopted(ONE)
    failed = Make.test("test_a.py::test_x[1]", verdict="unchecked", outcome="failed")
    passed = Make.test("test_a.py::test_x[1]")
    assert apply_baseline(Make.report(failed, passed), baseline).stale == baseline.entries
    assert apply_baseline(Make.report(passed, failed), baseline).stale == ()


def test_what_the_run_saw_of_the_collection_counts() -> None:
    baseline = adopted(ONE)
    clean = run_of(("test_a.py::test_x[2]", ()))
    assert apply_baseline(clean, baseline, Seen(partial=frozenset({"test_a.py::test_x"}))).stale == ()
    other = run_of(("test_a.py::test_y", ()))
    assert apply_baseline(other, baseline, Seen(gone=frozenset({"test_a.py::test_x"}))).stale == baseline.entries


def test_what_a_report_says_is_stale_stays_so_unless_it_is_found() -> None:
    baseline = adopted(ONE)
    assert apply_baseline(run_of(stale=baseline.entries), baseline).stale == baseline.entries
    assert apply_baseline(dataclasses.replace(ONE, stale=baseline.entries), baseline).stale == ()


def test_kinds_that_the_run_did_not_look_for_are_not_stale() -> None:
    baseline = adopted(run_of(("test_a.py::test_x", (leak("cycle", ""), leak("host", "")))))
    assert len(baseline.entries) == 2
    clean = run_of(("test_a.py::test_x", ()))
    unwatched = dataclasses.replace(clean, policy={"cycles": "ignore", "host": []})
    assert (apply_baseline(unwatched, baseline).stale, apply_baseline(clean, baseline).stale) == ((), baseline.entries)


def test_an_update_keeps_reasons_and_what_did_not_run() -> None:
    old = Baseline(
        (
            *(dataclasses.replace(entry, reason="upstream") for entry in adopted(ONE).entries),
            KnownLeak("test_b.py::test_z", None, "growing", "cpu", 7, "00aa", "z.Z", "seldom"),
        )
    )
    new, change = update_baseline(old, ONE)
    assert (new, change.added, change.removed, change.changed, len(change.kept)) == (old, (), (), (), 2)


def test_an_update_adds_changes_and_removes() -> None:
    before = run_of(
        ("test_a.py::test_grows", (leak(size=100),)),
        ("test_a.py::test_shrinks", (leak(size=100),)),
        ("test_a.py::test_stays", (leak(size=100),)),
        ("test_a.py::test_fixed", (leak(size=100),)),
    )
    old = Baseline(tuple(dataclasses.replace(entry, reason=entry.test) for entry in adopted(before).entries))
    after = run_of(
        ("test_a.py::test_grows", (leak(size=111),)),
        ("test_a.py::test_shrinks", (leak(size=50),)),
        ("test_a.py::test_stays", (leak(size=95),)),
        ("test_a.py::test_fixed", ()),
        ("test_a.py::test_new", (leak(size=1),)),
    )
    new, change = update_baseline(old, after)
    names = {part: [entry.test.rpartition("_")[2] for entry in getattr(change, part)] for part in change._fields}
    assert names == {
        "added": ["new"],
        "removed": ["fixed"],
        "changed": ["grows", "shrinks"],
        "kept": ["stays"],
        "before": ["grows", "shrinks"],
    }
    assert {entry.test.rpartition("_")[2]: (entry.bytes, bool(entry.reason)) for entry in new.entries} == {
        "grows": (111, True),
        "new": (1, False),
        "shrinks": (50, True),
        "stays": (100, True),
    }
    assert [entry.bytes for entry in change.before] == [100, 100]


def test_a_part_of_a_test_s_parameters_does_not_shrink_its_entry() -> None:
    old = adopted(run_of(("test_a.py::test_x[1]", (leak(size=10),)), ("test_a.py::test_x[2]", (leak(size=100),))))
    assert [entry.bytes for entry in old.entries] == [100]
    part = run_of(("test_a.py::test_x[1]", (leak(size=10),)))
    new, _ = update_baseline(old, part, Seen(partial=frozenset({"test_a.py::test_x"})))
    assert new == old


def test_an_update_writes_down_what_was_confirmed_since() -> None:
    old = adopted(run_of(("test_a.py::test_x", (leak("unconfirmed"),))))
    new, change = update_baseline(old, run_of(("test_a.py::test_x", (leak(),))))
    assert [entry.kind for entry in change.changed] == ["growing"]
    assert update_baseline(new, run_of(("test_a.py::test_x", (leak("unconfirmed"),))))[0] == new


@pytest.mark.parametrize("order", [1, -1])
def test_a_cache_filled_by_several_tests_is_one_entry_in_any_order(order: int) -> None:
    tests = [
        ("test_a.py::test_x", (leak("retained", size=60),)),
        ("test_b.py::test_z", (leak("retained", size=40),)),
    ][::order]
    (entry,) = adopted(run_of(*tests)).entries
    assert (entry.test, entry.bytes) == ("test_a.py::test_x", 100)
    alone = run_of(("test_b.py::test_z", (leak("retained", size=100),)))
    assert verdicts(apply_baseline(alone, Baseline((entry,)))) == ["noted"]


@pytest.mark.parametrize("order", [1, -1])
def test_holders_that_differ_by_a_number_are_one_entry_with_the_first_by_name(order: int) -> None:
    tests = [
        ("test_a.py::test_x[1]", (leak(root="item 1 of app"),)),
        ("test_a.py::test_x[2]", (leak(root="item 2 of app"),)),
    ]
    (entry,) = adopted(run_of(*tests[::order])).entries
    assert entry.holder == "item 1 of app"


kinds = st.sampled_from([kind for kind in get_args(FindingKind) if kind != "budget"])
leaks = st.builds(
    leak,
    kind=kinds,
    root=st.sampled_from(["", "app.A", "app.B", "app.layer1", "app.layer2"]),
    size=st.integers(0, 2**40),
    failed=st.booleans(),
    device=st.sampled_from(["cpu", "cuda:0", "cuda:1"]),
    holder_kind=st.sampled_from(["module", "unknown", "cache"]),
)
nodeids = st.sampled_from([f"test_{file}.py::test_x{end}" for file in "abc" for end in ("", "[1]", "[2]", "@g")])
tests_strategy = st.lists(st.tuples(nodeids, st.lists(leaks, max_size=3).map(tuple)), max_size=6)


@given(tests_strategy)
@settings(max_examples=25)
def test_adopted_a_run_is_clean_and_the_next_update_changes_nothing(
    tests: list[tuple[str, tuple[Finding, ...]]],
) -> None:
    report = run_of(*tests)
    baseline = adopted(report)
    judged = apply_baseline(report, baseline)
    assert judged.summary["leaked"] == 0
    assert judged.stale == ()
    assert update_baseline(baseline, judged)[0] == update_baseline(baseline, report)[0] == baseline


@given(tests_strategy, st.randoms())
@settings(max_examples=25)
def test_a_baseline_does_not_depend_on_the_order_of_tests(
    tests: list[tuple[str, tuple[Finding, ...]]], random: Any
) -> None:
    shuffled = random.sample(tests, len(tests))
    assert dump_baseline(adopted(run_of(*tests))) == dump_baseline(adopted(run_of(*shuffled)))


@given(tests_strategy, tests_strategy)
@settings(max_examples=25)
def test_to_apply_a_baseline_twice_changes_nothing(
    tests: list[tuple[str, tuple[Finding, ...]]], others: list[tuple[str, tuple[Finding, ...]]]
) -> None:
    baseline = adopted(run_of(*others))
    once = apply_baseline(run_of(*tests), baseline)
    assert apply_baseline(once, baseline) == once


texts = st.text(st.characters(exclude_categories=["Cs"]))
entries = st.builds(
    KnownLeak,
    test=texts.map(lambda text: "t" + text),
    fixture=st.none() | texts.map(lambda text: "f" + text),
    kind=kinds,
    device=st.sampled_from(["cpu", "cuda"]),
    bytes=st.integers(0, MAX_BYTES),
    fingerprint=st.text("0123456789abcdef", min_size=4, max_size=64),
    holder=texts,
    reason=texts,
)


@given(st.lists(entries, unique_by=lambda entry: entry.fingerprint), st.sampled_from([0.0, 0.1, 0.125, 1.5]))
@settings(max_examples=25)
def test_what_is_written_is_read_again(
    tmp_path_factory: pytest.TempPathFactory, entries: list[KnownLeak], tolerance: float
) -> None:
    path = tmp_path_factory.getbasetemp() / "leaks.toml"
    text = dump_baseline(Baseline(tuple(entries), tolerance))
    path.write_text(text, encoding="utf-8", newline="\n")
    loaded = load_baseline(path)
    assert (set(loaded.entries), loaded.tolerance) == (set(entries), tolerance)
    assert dump_baseline(loaded) == text


def test_the_file_is_sorted_and_says_what_it_is() -> None:
    baseline = Baseline(
        (
            KnownLeak("test_b.py::test_z", None, "growing", "cpu", 7, "00aa", "z.Z", "why\nnot"),
            KnownLeak("test_a.py", "model", "retained", "cuda", 9, "00bb"),
        ),
        0.25,
    )
    head, body = dump_baseline(baseline).split("\n\n", 1)
    assert head.startswith("# The GPU and tensor leaks")
    assert "--gpu-leak-update-baseline" in head
    assert body == (
        'version = 1\ntolerance = "25%"\n\n[[leak]]\ntest = "test_a.py"\nfixture = "model"\nkind = "retained"\n'
        'device = "cuda"\nbytes = 9\nfingerprint = "00bb"\nholder = ""\nreason = ""\n\n[[leak]]\n'
        'test = "test_b.py::test_z"\nkind = "growing"\ndevice = "cpu"\nbytes = 7\nfingerprint = "00aa"\n'
        'holder = "z.Z"\nreason = "why\\nnot"\n'
    )


HEAD = b"version = 1\n"
ENTRY = b'[[leak]]\ntest = "test_a.py::test_x"\nkind = "growing"\ndevice = "cpu"\nbytes = 1\nfingerprint = "00aa"\n'


def changed(old: bytes, new: bytes) -> bytes:
    assert old in ENTRY
    return HEAD + ENTRY.replace(old, new)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "states no version"),
        (b"{}", "not TOML: .*line 1"),
        (b"\x89PNG\r\n\x1a\n", "line 1 is not UTF-8"),
        (HEAD + b"\n\xff", "line 3 is not UTF-8"),
        (b"version = 2", "version = 2 is not accepted, only 1; a newer"),
        (b"version = true", "version = True is not accepted"),
        (b'version = "1"', "version = '1' is not accepted"),
        (b"version = " + b"9" * 5000, "not TOML|a huge number"),
        (b"version = 1\nversion = 1", "not TOML"),
        (b"a = " + b"[" * 100000, "not TOML"),
        (HEAD + b"leaks = 1", "unknown key 'leaks', accepted are: version, tolerance, leak"),
        (HEAD + b'"\\u001b[31m" = 1', r"unknown key '\\x1b\[31m'"),
        (HEAD + b"leak = 1", r"only tables that begin with \[\[leak\]\]"),
        (HEAD + b"leak = [1]", r"only tables that begin with \[\[leak\]\]"),
        (HEAD + b"tolerance = 0.1", "tolerance = 0.1 is not accepted, only a percentage"),
        (HEAD + b'tolerance = "-1%"', "tolerance"),
        (HEAD + b'tolerance = "nan%"', "tolerance"),
        (changed(b"bytes = 1\n", b""), r"entry 1, line 2 \(test_a.py::test_x\): bytes is missing"),
        (changed(b"1", b"-1"), "bytes = -1 is not accepted, only a whole number of bytes from 0"),
        (changed(b"1", b"nan"), "bytes = nan is not accepted"),
        (changed(b"1", b"1.5"), "bytes = 1.5"),
        (changed(b"1", b"true"), "bytes = True"),
        (changed(b"1", str(2**70).encode()), f"bytes = {2**70} is not accepted"),
        (changed(b'"growing"', b'"budget"'), "kind = 'budget' is not accepted, only one of growing, "),
        (changed(b'"cpu"', b'"cuda:0"'), "device = 'cuda:0' is not accepted, only a type of device without an index"),
        (changed(b'"00aa"', b'"../x"'), "fingerprint"),
        (changed(b'"test_a.py::test_x"', b'""'), "test is empty"),
        (changed(b'"test_a.py::test_x"', b"[1]"), "entry 1, line 2: test = a list is not accepted"),
        (HEAD + ENTRY + b"reasons = 1\n", "unknown key 'reasons', accepted are: test, fixture"),
        (HEAD + ENTRY + b"reason = 1\n", "reason = 1 is not accepted, only a text"),
        (HEAD + ENTRY + b"\n" + ENTRY, r"entry 2, line 9 \(test_a.py::test_x\): the same leak as entry 1"),
    ],
)
def test_a_bad_file_gets_one_line(tmp_path: pathlib.Path, content: bytes, words: str) -> None:
    path = tmp_path / "leaks\x1b[31m.toml"
    path.write_bytes(content)
    with pytest.raises(UnusableBaseline, match=words) as caught:
        load_baseline(path)
    assert str(caught.value).isprintable()
    assert "leaks\\x1b[31m.toml: " in str(caught.value)
    assert len(str(caught.value)) < 700
    assert path.read_bytes() == content


def test_a_huge_file_is_not_read(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "leaks.toml"
    with path.open("wb") as stream:
        stream.truncate(50 * MIB + 1)
    with pytest.raises(UnusableBaseline, match="larger than 50 MiB"):
        load_baseline(path)


def test_a_file_that_is_missing_is_no_bad_one(tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_baseline(tmp_path / "leaks.toml")


def test_every_kind_but_a_budget_can_be_listed() -> None:
    assert set(KINDS) == set(get_args(FindingKind)) - {"budget"}
