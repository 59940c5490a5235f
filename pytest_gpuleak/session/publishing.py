"""Publishes a run where it takes place: GitHub Actions, GitLab CI.

Nothing is published anywhere else. What cannot be published costs one line, and never the run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from typing import TYPE_CHECKING

from pytest_gpuleak.model.isolation import isolated
from pytest_gpuleak.model.text import clean_text
from pytest_gpuleak.reports import gitlab
from pytest_gpuleak.reports.github import render_annotations
from pytest_gpuleak.reports.markdown import MAX_BYTES, MIN_BYTES, encode_report
from pytest_gpuleak.reports.source_places import ROOT_KEY, findings_of
from pytest_gpuleak.session.ranks import path_of_rank

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pytest_gpuleak.model.records import RunReport
    from pytest_gpuleak.session.ci import Surroundings

CODE_QUALITY_NAME = "gpuleak-codequality.json"
"""The file that GitLab's ``artifacts:reports:codequality`` is pointed at, in the project's folder."""

TEXT_LIMIT = 500
"""Characters of what went wrong, in a line."""

MAX_SUMMARY = 1024 * 1024
"""Bytes of a step's summary, all that was appended to it: of a longer one GitHub shows nothing."""


def locate(report: RunReport, rootpath: Path, surroundings: Surroundings | None) -> RunReport:
    """Note in a report how pytest's rootdir is reached from the repository's root.

    Paths in a report are relative to the rootdir, those that code review wants to the repository. The repository is
    what CI calls its checkout, else the folder above that has a ``.git``.
    """
    try:
        folder = rootpath.resolve()
        root = _repository_of(folder, surroundings)
    except (OSError, RuntimeError, ValueError):  # a folder that may not be read, a loop of links, a NUL
        return report
    if root is None or ROOT_KEY in report.environment:
        return report
    below = folder.relative_to(root).as_posix()
    return dataclasses.replace(report, environment={**report.environment, ROOT_KEY: "" if below == "." else below})


def publish(report: RunReport, rootpath: Path, surroundings: Surroundings) -> list[str]:
    """Publish a run where it takes place: append the step's summary, write the code quality report.

    Args:
        report: the whole run, as `locate` returned it.
        rootpath: pytest's rootdir.
        surroundings: where the run takes place.

    Returns:
        Lines to print, each from the beginning of a line of the output: GitHub's annotations, and what went wrong.
    """

    def part(name: str, publish_it: Callable[[], list[str]]) -> list[str]:
        return isolated(publish_it, lambda why: [f"gpu-leak: publishing {name} failed: {clean_text(why, TEXT_LIMIT)}"])

    lines: list[str] = []
    summary = surroundings.summary
    if surroundings.github:
        lines += part("GitHub's annotations", lambda: render_annotations(report))
    if summary is not None:
        lines += part("the step's summary", lambda: _append_summary(report, summary))
    if surroundings.gitlab:
        path = path_of_rank((surroundings.project or rootpath) / CODE_QUALITY_NAME, surroundings.rank)
        lines += part("GitLab's code quality report", lambda: _write_code_quality(report, path))
    return lines


def print_lines(lines: list[str]) -> None:
    """Print lines where no reporter of pytest's does; what the output cannot encode is escaped."""
    encoding = sys.stdout.encoding or "ascii"
    for line in lines:
        print(line.encode(encoding, "backslashreplace").decode(encoding))  # noqa: T201 - CI reads it there


def _repository_of(folder: Path, surroundings: Surroundings | None) -> Path | None:
    if surroundings is not None and surroundings.project is not None:
        project = surroundings.project.resolve()
        return project if folder.is_relative_to(project) else None
    return next((above for above in (folder, *folder.parents) if (above / ".git").exists()), None)


def _append_summary(report: RunReport, path: Path) -> list[str]:
    """Append to the summary of the step, which other runs of pytest and other tools write to as well."""
    try:
        taken = path.stat().st_size if path.exists() else 0
        # Beside what GitHub adds for itself.
        room = min(MAX_BYTES, MAX_SUMMARY - taken - 4096)
        if room < MIN_BYTES:
            return [f"gpu-leak: nothing was added to GITHUB_STEP_SUMMARY, which is full ({taken} bytes)"]
        text = encode_report(report, limit=room)
        # An empty line ends whatever Markdown block was written before.
        _append(f"\n\n{text}" if taken else text, path, taken)
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        return [f"gpu-leak: GITHUB_STEP_SUMMARY could not be written: {_reason(error)}"]
    return []


def _append(text: str, path: Path, taken: int) -> None:
    """Append all of a text to a file of `taken` bytes, or nothing of it. Raises OSError."""
    try:
        # Where it is a pipe that nothing reads, an error and no wait for ever.
        with open(path, "a", encoding="utf-8", newline="\n", opener=_open_without_waiting) as stream:
            stream.write(text)
    except OSError:
        # Half of an HTML block would swallow whatever other steps write.
        with contextlib.suppress(OSError):
            if path.stat().st_size > taken:
                os.truncate(path, taken)
        raise


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0), 0o666)


def _write_code_quality(report: RunReport, path: Path) -> list[str]:
    """Write the code quality report, empty where nothing leaked: without one GitLab cannot tell what was fixed."""
    try:
        gitlab.write(report, path)
    except (OSError, ValueError) as error:
        return [f"gpu-leak: {path.name} could not be written: {_reason(error)}"]
    if not any(found.failed or found.known for _, found in findings_of(report)):
        return []
    return [f"gpu-leak: GitLab's code quality report is {path.name}, in the project's folder"]


def _reason(error: Exception) -> str:
    return clean_text(str(getattr(error, "strerror", None) or error), TEXT_LIMIT)
