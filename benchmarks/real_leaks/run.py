"""Historical leaks of public libraries, each in its old version: is it found, and is the right holder named?

    python benchmarks/real_leaks/run.py [--only NAME] [--cache DIR] [--markdown FILE]

Every folder beside this file that has a `case.toml` is a case: a small test of a user's, and what is known of the leak.
The leaky release and the one that fixed it are installed from the package index into folders of their own, without
dependencies, and put before everything else on the path; torch and pytest are those of the running interpreter. Each
test runs once with either release under ``--gpu-leak``. The exit status is 1 where a leak is not found, where its
holder is not the one that `case.toml` states, or where the fixed release is found to leak.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parent.parent
DEFAULT_CACHE = Path(tempfile.gettempdir()) / "gpuleak-real-leaks"
SECONDS_A_RUN = 600
"""A test of a case takes seconds; one that takes longer than this has hung."""

MAX_HOLDER = 100
"""Characters of a holder's text in the printed table."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One historical leak.

    Attributes:
        name: the folder's name.
        package: the distribution that leaked.
        leaky: a release with the leak.
        fixed: a release without it, or empty where none was published.
        issue: the address of upstream's issue or pull request.
        about: what leaks, in one line.
        requirements: what else is installed, pinned.
        holder: a regular expression that a failed finding's holder, text or root, must contain; empty where none is shown.
        changed: what upstream's fix changed.
        same: whether the holder shown is what the fix changed: ``True``, ``False`` or ``"partly"``.
        notes: what a reader of the finding should know.
        fixed_requirements: what is installed beside the fixed release instead, where that differs.
        options: further options for pytest.
    """

    name: str
    package: str
    leaky: str
    fixed: str
    issue: str
    about: str
    requirements: tuple[str, ...]
    holder: str
    changed: str
    same: bool | str
    notes: str = ""
    fixed_requirements: tuple[str, ...] | None = None
    options: tuple[str, ...] = ()

    @property
    def releases(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """The versions to run, the leaky one first, each with everything to install for it."""
        yield self.leaky, (f"{self.package}=={self.leaky}", *self.requirements)
        if self.fixed:
            others = self.requirements if self.fixed_requirements is None else self.fixed_requirements
            yield self.fixed, (f"{self.package}=={self.fixed}", *others)


@dataclasses.dataclass(frozen=True)
class Row:
    """What one run of a case's tests showed.

    Attributes:
        case: the case.
        version: the release it ran with.
        verdict: ``leaked``, ``noted`` or ``clean``; ``failed`` where a test did not pass or nothing could be run.
        kind: the kind of the finding shown.
        count: how many arrays it covers.
        holder: who holds them, in the report's words; empty without a finding.
        matches: whether the holder is the stated one; None for a fixed release.
        problem: what is not as stated, or empty.
    """

    case: Case
    version: str
    verdict: str
    kind: str = ""
    count: int = 0
    holder: str = ""
    matches: bool | None = None
    problem: str = ""

    @property
    def same_line(self) -> str:
        """Whether the holder shown is what upstream's fix changed, in a word; empty where it is not the stated one."""
        if not self.matches:
            return ""
        if isinstance(self.case.same, str):
            return self.case.same
        return "yes" if self.case.same else "no"


def read_case(folder: Path) -> Case:
    """Read a case's `case.toml`. Raises TypeError where a key is missing or unknown, ValueError for invalid TOML."""
    with (folder / "case.toml").open("rb") as stream:
        content: dict[str, Any] = tomllib.load(stream)
    for key in ("requirements", "fixed_requirements", "options"):
        if key in content:
            content[key] = tuple(content[key])
    return Case(name=folder.name, **content)


def read_cases(only: Sequence[str]) -> list[Case]:
    """The cases in the order of their names; all of them, or those that `only` names."""
    folders = sorted(file.parent for file in HERE.glob("*/case.toml"))
    return [read_case(folder) for folder in folders if not only or folder.name in only]


def install(requirement: str, cache: Path) -> Path:
    """The folder that holds one pinned distribution, installed there unless it already is.

    It is named ``site-packages``, so that the library counts as installed and not as the user's own code. Raises
    subprocess.CalledProcessError, with pip's words in `stderr`, where the index does not have it.
    """
    place = cache / requirement.replace("==", "-") / "site-packages"
    if place.is_dir():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=place.parent))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check"]
    try:
        subprocess.run([*pip, "--target", str(draft), requirement], check=True, capture_output=True, text=True)
        draft.rename(place)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return place


def run_tests(case: Case, places: Sequence[Path]) -> dict[str, Any] | str:
    """Run a case's tests with the distributions in `places`: the JSON report, or pytest's output if there is none."""
    with tempfile.TemporaryDirectory() as folder:
        # Beside this project's own files pytest would take its configuration and its conftest from them.
        root = Path(folder).resolve()
        for file in (HERE / case.name).glob("*.py"):
            shutil.copy(file, root)
        report = root / "report.json"
        inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        path = [*map(str, places), *filter(None, inherited), str(CHECKOUT)]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path),
            "PYTHONDONTWRITEBYTECODE": "1",
            # Some libraries bring pytest plugins of their own, which a user's run would have and this one need not.
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_ADDOPTS": "",
        }
        pytest = [sys.executable, "-m", "pytest", "-p", "pytest_gpuleak.plugin", "-p", "no:cacheprovider"]
        project = ["-c", os.devnull, "--rootdir", str(root), "--gpu-leak", f"--gpu-leak-report={report}"]
        done = subprocess.run(
            [*pytest, *project, *case.options, str(root)],
            cwd=root,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS_A_RUN,
            check=False,
        )
        if not report.is_file():
            return done.stdout + done.stderr
        content: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
        return content


def judge(case: Case, version: str, report: dict[str, Any]) -> Row:
    """Compare a report with what the case states."""
    tests = report["tests"]
    not_passed = [test for test in tests if test["outcome"] != "passed" or test["verdict"] == "unchecked"]
    if not_passed or not tests:
        reason = not_passed[0]["why_unchecked"] or not_passed[0]["outcome"] if not_passed else "no test ran"
        return Row(case, version, "failed", problem=f"a test did not pass: {reason}")
    findings = [finding for record in (*tests, *report["fixtures"]) for finding in record["findings"]]
    failed = [finding for finding in findings if finding["failed"]]
    verdict = "leaked" if failed else "noted" if findings else "clean"
    failed.sort(key=lambda finding: -int(finding["bytes"]))
    shown = failed or findings
    # Without a stated holder any finding will do: a cycle has none.
    matching = [f for f in failed if not case.holder or any(re.search(case.holder, text) for text in holder_of(f))]
    leaky = version == case.leaky
    first = (matching or shown or [None])[0]
    row = Row(case, version, verdict, matches=bool(matching) if leaky else None)
    if first is not None:
        row = dataclasses.replace(row, kind=first["kind"], count=first["count"], holder=text_of(first))
    if leaky and not failed:
        return dataclasses.replace(row, problem="the leak was not found")
    if leaky and not matching:
        return dataclasses.replace(row, problem=f"no holder matches {case.holder!r}")
    if not leaky and failed:
        return dataclasses.replace(row, problem="the fixed release is said to leak")
    return row


def text_of(finding: dict[str, Any]) -> str:
    """The holder's whole chain, or empty."""
    holder = finding["holder"]
    return "" if holder is None else str(holder["text"])


def holder_of(finding: dict[str, Any]) -> tuple[str, ...]:
    """What a case's expression is looked for in: the holder's root and its chain."""
    holder = finding["holder"]
    return () if holder is None else (holder["root"], holder["text"])


def run_case(case: Case, cache: Path) -> Iterator[Row]:
    """Run a case with each of its releases."""
    for version, requirements in case.releases:
        try:
            places = [install(requirement, cache) for requirement in requirements]
            report = run_tests(case, places)
        except subprocess.CalledProcessError as error:
            yield Row(case, version, "failed", problem=f"not installed: {last_line(error.stderr)}")
        except subprocess.TimeoutExpired:
            yield Row(case, version, "failed", problem=f"hung for {SECONDS_A_RUN} s")
        else:
            if isinstance(report, str):
                yield Row(case, version, "failed", problem=f"no report: {last_line(report)}")
            else:
                yield judge(case, version, report)


def last_line(text: str) -> str:
    """The last line of a program's output that is not empty."""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no output"


def cells(row: Row) -> tuple[str, ...]:
    """A row of the printed table."""
    matches = {True: "yes", False: "NO", None: ""}[row.matches]
    holder = row.holder if len(row.holder) <= MAX_HOLDER else row.holder[: MAX_HOLDER - 3] + "..."
    count = str(row.count) if row.kind else ""
    release = f"{row.case.package} {row.version}"
    return row.case.name, release, row.verdict, row.kind, count, holder, matches, row.same_line


HEAD = ("case", "release", "verdict", "kind", "count", "holder", "as stated", "upstream's line")


def table(rows: Sequence[Row]) -> str:
    """The results as text in columns."""
    lines = [HEAD, *map(cells, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    padded = ([cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines)
    return "\n".join("  ".join(line).rstrip() for line in padded)


def markdown(rows: Sequence[Row]) -> str:
    """The results as a Markdown table, and under it what upstream changed for each case."""
    lines = [f"| {' | '.join(HEAD)} |", f"|{' --- |' * len(HEAD)}"]
    for row in rows:
        name, release, verdict, kind, count, _, matches, same = cells(row)
        link = f"[{name}]({row.case.issue})"
        # A vertical bar would end the cell; it is not code that anybody copies.
        holder = f"`{row.holder.replace('|', '/').replace('`', '')}`" if row.holder else ""
        lines.append(f"| {' | '.join((link, release, verdict, kind, count, holder, matches, same))} |")
    lines.append("")
    for case in dict.fromkeys(row.case for row in rows):
        lines.append(f"- **{case.name}**: {case.about} Upstream's fix: {case.changed} {case.notes}".rstrip())
    return "\n".join(lines) + "\n"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="NAME", action="append", default=[], help="a case to run; repeatable")
    parser.add_argument("--cache", metavar="DIR", type=Path, default=DEFAULT_CACHE, help="where releases are installed")
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="also write the results as Markdown")
    return parser.parse_args(arguments)


def main() -> int:
    """Run the cases, print the table, and return the exit status."""
    options = parse()
    cases = read_cases(options.only)
    unknown = set(options.only) - {case.name for case in cases}
    if unknown or not cases:
        print(f"no such case: {', '.join(sorted(unknown)) or 'none at all'}", file=sys.stderr)
        return 2
    rows: list[Row] = []
    for case in cases:
        for row in run_case(case, options.cache.expanduser().resolve()):
            rows.append(row)
            said = row.problem or row.verdict
            print(f"{case.name}, {case.package} {row.version}: {said}", file=sys.stderr, flush=True)
    print(table(rows))
    if options.markdown is not None:
        options.markdown.write_text(markdown(rows), encoding="utf-8")
    wrong = [row for row in rows if row.problem]
    for row in wrong:
        print(f"{row.case.name}, {row.case.package} {row.version}: {row.problem}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
