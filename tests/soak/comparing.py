"""What a run with the plugin says otherwise than one without, and what it says of the leaks that were planted."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.soak.running import Outcome, Side
    from tests.soak.suites import Suite

_OWN_FILES = re.compile(r"^gpuleak\.|(^|/)__pycache__(/|$)|^\.hypothesis|\.pyc$")
_ADDRESS = re.compile(
    r"0x[0-9a-f]+|\.\.\.[0-9a-f]*>|<pluggy\._tracing[^>]*>|(?<=(?:stopped|started) )(?:daemon )?\d+(?=\)>)"
    r"|(?<=\()\d{9,}(?=\) ~~)"
)  # the second: the end of one, in a text that pytest has cut; the last two: a thread's number, there by pytest-timeout
_SECONDS = re.compile(r"\d+(\.\d+)?s\b( \(\d:\d\d:\d\d\))?")
_CLOCK = re.compile(r"\d\d:\d\d:\d\d")
_RULE = re.compile(r"([=\-_])\1{2,}")
_PADDING = re.compile(r" +")
_PYTESTS = re.compile(r"\b(methods|hook_impls) += \[.*$|\b(time|perf_count)=[\d.]+|\btestsfailed=\d+", re.MULTILINE)
"""Values in pytest's own frames, the list of plugins among them: pytest shows them where it has no frame of the user's."""

_CUT_FOLDER = re.compile(r"\.\.\.[^\s'\"]*/suite/")
"""The suite's folder in a value that pytest shortened in the middle (``--showlocals``)."""
_SLOW_TASK = re.compile(r"^.*Executing <.* took .* seconds$\n?", re.MULTILINE)
_FAULTS = ("INTERNALERROR", "the plugin failed", "could not be checked", "cannot be read: ", "could not be written")
_STOPPED = 2
"""Exit status of a run that is stopped from within (`pytest.exit`, Ctrl-C, `--stepwise` at a failure)."""


@dataclasses.dataclass(frozen=True)
class Difference:
    """Something that the plugin has changed, or said wrongly.

    Attributes:
        kind: in one word or two; what shrinking must keep.
        where: a test, a file or a run.
        what: what differs, as one line.
    """

    kind: str
    where: str
    what: str

    def __str__(self) -> str:
        text = " ".join(self.what.split())
        return f"{self.kind}: {self.where}: {text[:600]}"


def compare(suite: Suite, without: Side, with_it: Side) -> list[Difference]:
    """Tell what differs between the two sides, and what is said wrongly of what was planted."""
    found: list[Difference] = []
    for turn, (bare, checked) in enumerate(zip(without.outcomes, with_it.outcomes, strict=True)):
        run = f"run {turn}"
        if bare.status is None:
            return [Difference("generator", run, "the suite hangs without the plugin")]
        if checked.status is None:
            return [Difference("hang", run, "does not end with the plugin; it does without")]
        found += _compare_runs(suite, bare, checked, without.folder, with_it.folder, run)
        if "not run" not in suite.traits:
            found += _compare_verdicts(suite, bare, checked, run)
        if leaked_tests(checked):
            break  # the next run asks what has failed in this one, and a leak is a failure
    found += _compare_files(suite, without, with_it)
    return found


def _compare_runs(
    suite: Suite, bare: Outcome, checked: Outcome, bare_folder: Path, checked_folder: Path, run: str
) -> list[Difference]:
    found = []
    leaks = leaked_tests(checked)
    failing = bool(leaks) or _fixtures_failed(suite, checked)
    allowed = {1, _STOPPED} if _steps(suite) else {1}
    # A run that stops at a leak does not come to what ends the other one: a Ctrl-C, say.
    stopped = "stops" in suite.traits and bool(leaks)
    expected = failing and (stopped or bare.status in (0, 5)) and checked.status in allowed
    if bare.status != checked.status and not expected:
        found.append(Difference("exit status", run, f"{bare.status} without, {checked.status} with"))
    if bare.left != checked.left:
        found.append(Difference("processes left", run, f"{bare.left} without, {checked.left} with"))
    for fault in _FAULTS:
        if fault in checked.output and fault not in bare.output:
            line = next(line for line in checked.output.splitlines() if fault in line)
            found.append(Difference("fault", run, line))
    one, other = (_attempts(outcome, folder) for outcome, folder in ((bare, bare_folder), (checked, checked_folder)))
    found += _compare_attempts(one, other, leaks, cut=stopped, run=run)
    in_order = not suite.traits & {"xdist"}
    if in_order:
        orders = [list(dict.fromkeys(nodeid for nodeid, _ in attempts)) for attempts in (one, other)]
        if orders[0][: len(orders[1])] != orders[1]:
            found.append(Difference("order", run, f"{orders[0]} without, {orders[1]} with"))
    warnings = [_warnings(outcome) for outcome in (bare, checked)]
    repeated = bool(leaks) and bool(suite.traits & {"stops", "reruns"})  # other tests run, or tests run more often
    if not repeated and warnings[0] != warnings[1]:
        found.append(Difference("warnings", run, _difference(warnings[0], warnings[1])))
    texts = [_own_lines(outcome.output, leaks) for outcome in (bare, checked)]
    if in_order and not repeated and texts[0] != texts[1]:
        found.append(Difference("output", run, _difference(texts[0], texts[1])))
    if in_order and not failing:
        lines = [
            _terminal(outcome.output, folder) for outcome, folder in ((bare, bare_folder), (checked, checked_folder))
        ]
        if lines[0] != lines[1]:
            found.append(Difference("terminal", run, _difference(lines[0], lines[1])))
    return found


def _steps(suite: Suite) -> bool:
    """Whether pytest stops at the first failure as at Ctrl-C."""
    return bool({"--stepwise", "--sw"} & {*suite.options, *(suite.again or ())})


Attempts = dict[tuple[str, int], list[dict[str, Any]]]


def _attempts(outcome: Outcome, folder: Path) -> Attempts:
    """The reports by test and attempt (a plugin may run a test several times), freed of what differs from run to run."""
    found: Attempts = {}
    numbers: dict[str, int] = {}
    for record in outcome.records:
        if record["kind"] != "report":
            continue
        nodeid = record["nodeid"]
        if record["when"] == "setup":
            numbers[nodeid] = numbers.get(nodeid, -1) + 1
        kept = {
            key: _plain(record[key], folder)
            for key in ("when", "outcome", "xfail", "text", "sections", "properties", "type")
        }
        kept["sections"] = [section for section in kept["sections"] if section[1]]
        if record["leaked"]:
            kept["outcome"], kept["text"] = "passed", ""
        found.setdefault((nodeid, numbers.get(nodeid, 0)), []).append(kept)
    return found


def _compare_attempts(one: Attempts, other: Attempts, leaks: set[str], *, cut: bool, run: str) -> Iterable[Difference]:
    for key in {**one, **other}:
        nodeid, attempt = key
        if key not in other:
            if not cut:
                yield Difference("missing", nodeid, f"{run}: attempt {attempt} is missing with the plugin")
        elif key not in one:
            # pytest-rerunfailures repeats what has failed, and a leak is a failure.
            if nodeid not in leaks:
                yield Difference("added", nodeid, f"{run}: attempt {attempt} is there with the plugin alone")
        elif one[key] != other[key]:
            yield from _compare_phases(nodeid, one[key], other[key], run, leaked=nodeid in leaks)


def _compare_phases(
    nodeid: str, one: list[dict[str, Any]], other: list[dict[str, Any]], run: str, *, leaked: bool
) -> Iterable[Difference]:
    if leaked and other[: len(one)] == one:
        return  # sub-tests of another attempt: pytest-rerunfailures repeats what has failed, and a leak is a failure
    if len(one) != len(other):
        yield Difference("reports", nodeid, f"{run}: {_phases(one)} without, {_phases(other)} with")
        return
    for before, after in zip(one, other, strict=True):
        for key, value in before.items():
            if value != after[key] and not (leaked and key == "outcome" and after[key] == "rerun"):
                what = f"{run}, {before['when']}: {value!r} without, {after[key]!r} with"
                yield Difference("outcome" if key == "outcome" else key, nodeid, what)


def _phases(reports: list[dict[str, Any]]) -> list[str]:
    return [f"{report['when']} {report['outcome']}" for report in reports]


def _compare_verdicts(suite: Suite, bare: Outcome, checked: Outcome, run: str) -> Iterable[Difference]:
    report = checked.report
    ended = _ended(bare)
    if not suite.reports:
        yield from _compare_leaks(suite, ended, checked, run)
        return
    if report is None:
        if ended and bare.status is not None:
            yield Difference("report", run, "there is none")
        return
    verdicts: dict[str, dict[str, Any]] = {}
    for test in report["tests"]:
        name = test["nodeid"].partition("@")[0]
        # An attempt that leaks is repeated by pytest-rerunfailures, and may then leave nothing more.
        if name not in verdicts or verdicts[name]["verdict"] != "leaked":
            verdicts[name] = test
    expected = suite.expected()
    for nodeid, test in verdicts.items():
        allowed = expected.get(nodeid)
        if allowed is None:
            continue
        if nodeid not in ended:
            allowed = allowed | {"unchecked"}
        if ended.get(nodeid) in ("failed", "skipped", "error"):
            allowed = frozenset({"unchecked"})  # without the plugin it did not pass
        if test["verdict"] not in allowed:
            kind = "missed" if "leaked" in allowed else "false alarm" if test["verdict"] == "leaked" else "verdict"
            what = f"{run}: {test['verdict']}, not {' or '.join(sorted(allowed))}: {test['why_unchecked'] or ''} "
            yield Difference(kind, nodeid, what + "; ".join(map(_brief, test["findings"])))
    seen = _ended(checked)
    for nodeid in seen:
        if nodeid not in verdicts:
            yield Difference("lost", nodeid, f"{run}: it has ended and is not in the report")
    yield from _compare_fixtures(suite, bare, report, run)


def _compare_leaks(suite: Suite, ended: dict[str, str], checked: Outcome, run: str) -> Iterable[Difference]:
    """Compare which tests fail by a leak, where no report has the verdicts."""
    seen, leaked = _ended(checked), leaked_tests(checked)
    for nodeid, allowed in suite.expected().items():
        if ended.get(nodeid) != "passed" or nodeid not in seen:
            continue
        if nodeid in leaked and "leaked" not in allowed:
            yield Difference("false alarm", nodeid, f"{run}: leaked, not {' or '.join(sorted(allowed))}")
        elif nodeid not in leaked and allowed == {"leaked"}:
            yield Difference("missed", nodeid, f"{run}: it does not fail, but leaks")


def _compare_fixtures(suite: Suite, bare: Outcome, report: dict[str, Any], run: str) -> Iterable[Difference]:
    found: dict[str, bool] = {}
    for fixture in report["fixtures"]:
        failed = any(finding["failed"] for finding in fixture["findings"] if not _is_in_kept_frame(finding))
        found[fixture["name"]] = found.get(fixture["name"], False) or failed
    expected = suite.expected_fixtures()
    # A fixture is judged once it is torn down, which a process that ends before, or pytest-rerunfailures, may leave out.
    finalised = {record["name"] for record in bare.records if record["kind"] == "finalised"}
    for name, fails in found.items():
        if name.startswith("busy_") or (name.startswith("shared_") and not fails):
            continue  # a thread that makes garbage; a test may keep its frame, and so the values of its fixtures
        if name not in expected:
            yield Difference("false alarm", f"fixture {name}", f"{run}: it leaves nothing; said is failed={fails}")
        elif fails and not expected[name]:
            yield Difference("false alarm", f"fixture {name}", f"{run}: it fails, for a residue that is small")
    for name, fails in expected.items():
        missed = name not in found or (fails and not found[name])
        gone = name in finalised or any(one.endswith(f"_fixture_{name.partition('.')[0]}") for one in finalised)
        if (
            missed
            and gone
            and not suite.traits & {"xdist", "stops", "order"}
            and suite.again is None
            and not suite.hides
        ):
            yield Difference(
                "missed", f"fixture {name}", f"{run}: {'not named' if name not in found else 'not failed'}"
            )


def _is_in_kept_frame(finding: dict[str, Any]) -> bool:
    """Whether a test keeps its frame by the traceback of an error, and so the value of a fixture that it uses."""
    text = (finding.get("holder") or {"text": ""})["text"]
    return "__traceback__" in text and ".f_locals['shared_" in text


def _brief(finding: dict[str, Any]) -> str:
    holder = finding["holder"] or {"text": "-"}
    return f"{finding['kind']} {finding['count']} in {holder['text']}, {finding['bytes']} bytes ({finding.get('hint')})"


def _ended(outcome: Outcome) -> dict[str, str]:
    """The tests whose teardown was reported, by nodeid, with their outcome over all phases."""
    found: dict[str, str] = {}
    current: dict[str, str] = {}
    for record in outcome.records:
        if record["kind"] != "report":
            continue
        nodeid = record["nodeid"]
        if record["when"] == "setup":
            current[nodeid] = "passed"
        if record["outcome"] in ("failed", "skipped") and not record["leaked"]:
            current[nodeid] = record["outcome"]
        if record["when"] == "teardown":
            found[nodeid] = current.get(nodeid, "passed")
    return found


def leaked_tests(outcome: Outcome) -> set[str]:
    """Tests that failed by a leak."""
    return {record["nodeid"] for record in outcome.records if record["kind"] == "report" and record["leaked"]}


def _fixtures_failed(suite: Suite, outcome: Outcome) -> bool:
    if not suite.reports:
        return any(suite.expected_fixtures().values())
    fixtures = outcome.report["fixtures"] if outcome.report else []
    return any(finding["failed"] for fixture in fixtures for finding in fixture["findings"])


def _warnings(outcome: Outcome) -> list[str]:
    """Those that the tests give themselves: when an object dies, and what it says then, is the collector's affair."""
    return sorted(
        f"{record['nodeid']}: {record['text']}"
        for record in outcome.records
        if record["kind"] == "warning" and "soak warning" in record["text"]
    )


def _own_lines(output: str, leaks: set[str]) -> list[str]:
    """What the tests print, where it is not captured, but for the tests that failed alone with the plugin."""
    del leaks
    return [_ADDRESS.sub("0x", line[line.index("soak ") :]) for line in output.splitlines() if _is_own(line)]


def _is_own(line: str) -> bool:
    return line.lstrip("F.sxXEL").startswith("soak ")


def _terminal(output: str, folder: Path) -> list[str]:
    """What pytest prints in a run without a leak, freed of what the plugin adds and what differs from run to run."""
    lines = []
    for line in output.splitlines():
        if line.startswith(("gpu-leak: ", "plugins: ", "GPU ")) or " slowest " in line or "durations <" in line:
            continue
        if _SLOW_TASK.match(line) or " Captured log " in line:
            continue
        text = _SECONDS.sub("T", _plain(line, folder))
        text = _PADDING.sub(" ", _RULE.sub("--", _CLOCK.sub("T", text))).strip()
        if re.match(r"T (setup|call|teardown) ", text):
            continue
        lines.append(text)
    # The notes on what is left behind and does not fail have a section of their own.
    return _without_section(lines)


def _without_section(lines: list[str]) -> list[str]:
    kept, inside = [], False
    for line in lines:
        if line.startswith("--"):
            inside = line.strip("- ") == "GPU LEAKS"
        if not inside and line:
            kept.append(line)
    return kept


def _compare_files(suite: Suite, without: Side, with_it: Side) -> Iterable[Difference]:
    leaks = set().union(*map(leaked_tests, with_it.outcomes))
    if leaks and ("stops" in suite.traits or suite.again is not None):
        return  # other tests have run
    one, other = (
        {name: content for name, content in side.files.items() if not _OWN_FILES.search(name)}
        for side in (without, with_it)
    )
    for name in {**one, **other}:
        if name not in one or name not in other:
            if not (name.startswith(".pytest_cache") and leaks):
                where = "without" if name in one else "with"
                yield Difference("files", name, f"is there only {where} the plugin")
        elif one[name] != other[name]:
            difference = _compare_content(name, one[name], other[name], leaks, without.folder, with_it.folder)
            if difference is not None:
                yield Difference("files", name, difference)


def _compare_content(
    name: str, one: bytes, other: bytes, leaks: set[str], bare_folder: Path, checked_folder: Path
) -> str | None:
    if name.startswith(".pytest_cache"):
        return None if leaks or name.endswith("stepwise") else f"{one!r} without, {other!r} with"
    if name == "junit.xml":
        before, after = _cases(one, bare_folder), _cases(other, checked_folder)
        if leaks:
            # A leak is a failure there, and pytest-rerunfailures repeats what has failed: which tests there are is equal.
            names = [sorted({key[:2] for key in cases}) for cases in (before, after)]
            return None if names[0] == names[1] else _difference(*([*map(str, those)] for those in names))
        return None if before == after else _difference([*map(str, before.items())], [*map(str, after.items())])
    texts = [
        _CLOCK.sub("T", _plain(content.decode(errors="replace"), folder)).splitlines()
        for content, folder in ((one, bare_folder), (other, checked_folder))
    ]
    return None if texts[0] == texts[1] else _difference(texts[0], texts[1])


def _cases(content: bytes, folder: Path) -> dict[tuple[Any, ...], object]:
    """The tests of a JUnit report: what is said of each, without times and the plugin's own properties."""
    cases: dict[tuple[Any, ...], object] = {}
    for case in ElementTree.fromstring(content).iter("testcase"):
        children = []
        for child in case:
            if child.tag == "properties":
                own = [one.get("name", "") for one in child if not (one.get("name") or "").startswith("gpu_leak")]
                if own:
                    children.append(("properties", own))
            else:
                text = _CLOCK.sub("T", _plain(child.text or "", folder))
                children.append((child.tag, [_plain(child.get("message") or "", folder), text]))
        key = (case.get("classname") or "", case.get("name") or "")
        attempt = sum(one[:2] == key for one in cases)
        cases[key[0], key[1], attempt] = children
    return cases


def _plain(value: Any, folder: Path) -> Any:
    """A text, or texts in lists, without what differs from run to run: addresses and the folder."""
    if isinstance(value, str):
        value = _CUT_FOLDER.sub("<folder>/", _PYTESTS.sub("", _SLOW_TASK.sub("", value)))
        return _ADDRESS.sub("0x", value.replace(str(folder), "<folder>").replace(str(folder.parent), "<above>"))
    if isinstance(value, list):
        return [_plain(one, folder) for one in value]
    return value


def _difference(one: list[str], other: list[str]) -> str:
    """The lines that are in one alone, or the first place where the order differs."""
    gone, added = list(one), []
    for line in other:
        if line in gone:
            gone.remove(line)
        else:
            added.append(line)
    if gone or added:
        return f"only without: {gone[:6]}; only with: {added[:6]}"
    place = next(index for index, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1])
    return f"another order from line {place} on: {one[place]!r} without, {other[place]!r} with"
