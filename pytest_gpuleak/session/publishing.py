"""Publish a run where it takes place: GitHub Actions, GitLab CI. A failure costs a line, and never the run."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from typing import TYPE_CHECKING

from pytest_gpuleak.model.isolation import isolated
from pytest_gpuleak.model.text import clean_text
from pytest_gpuleak.reports import gitlab
from pytest_gpuleak.reports.atomic_write import write_text
from pytest_gpuleak.reports.github import render_annotations
from pytest_gpuleak.reports.markdown import MAX_BYTES, MIN_BYTES, encode_report
from pytest_gpuleak.reports.source_places import ROOT_KEY, findings_of
from pytest_gpuleak.session.surroundings import path_of_rank

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pytest_gpuleak.model.records import RunReport
    from pytest_gpuleak.session.surroundings import Surroundings

CODE_QUALITY_NAME = "gpuleak-codequality.json"
"""The file in the project's folder that GitLab's ``artifacts:reports:codequality`` names."""

TEXT_LIMIT = 500
"""Characters of an error in a line."""

MAX_SUMMARY = 1024 * 1024
"""Bytes of a step's summary with all that was appended: GitHub shows nothing of a longer summary."""


def locate(report: RunReport, rootpath: Path, surroundings: Surroundings | None) -> RunReport:
    """Note in a report how pytest's rootdir is reached from the repository's root: CI's checkout, or a ``.git``."""
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
    """Publish a run: append the step's summary, write the code quality report, and return the lines to print."""

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
    """Print lines where no terminal reporter does; characters that the output cannot encode are escaped."""
    encoding = sys.stdout.encoding or "ascii"
    for line in lines:
        print(line.encode(encoding, "backslashreplace").decode(encoding))  # noqa: T201 - CI reads it there


def _repository_of(folder: Path, surroundings: Surroundings | None) -> Path | None:
    if surroundings is not None and surroundings.project is not None:
        project = surroundings.project.resolve()
        return project if folder.is_relative_to(project) else None
    return next((above for above in (folder, *folder.parents) if (above / ".git").exists()), None)


def _append_summary(report: RunReport, path: Path) -> list[str]:
    try:
        taken = path.stat().st_size if path.exists() else 0
        # GitHub adds text of its own.
        room = min(MAX_BYTES, MAX_SUMMARY - taken - 4096)
        if room < MIN_BYTES:
            return [f"gpu-leak: nothing was added to GITHUB_STEP_SUMMARY, which is full ({taken} bytes)"]
        text = encode_report(report, limit=room)
        # An empty line ends any Markdown block before.
        _append(f"\n\n{text}" if taken else text, path, taken)
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        return [f"gpu-leak: GITHUB_STEP_SUMMARY could not be written: {_reason(error)}"]
    return []


def _append(text: str, path: Path, taken: int) -> None:
    try:
        # Fail instead of waiting for ever at a pipe without a reader.
        with open(path, "a", encoding="utf-8", newline="\n", opener=_open_without_waiting) as stream:
            stream.write(text)
    except OSError:
        # Half of an HTML block would swallow the output of other steps.
        with contextlib.suppress(OSError):
            if path.stat().st_size > taken:
                os.truncate(path, taken)
        raise


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0), 0o666)


def _write_code_quality(report: RunReport, path: Path) -> list[str]:
    """Write the code quality report even without leaks, so that GitLab can tell what was fixed."""
    try:
        write_text(gitlab.encode_report(report), path)
    except (OSError, ValueError) as error:
        return [f"gpu-leak: {path.name} could not be written: {_reason(error)}"]
    if not any(found.failed or found.known for _, found in findings_of(report)):
        return []
    return [f"gpu-leak: GitLab's code quality report is {path.name}, in the project's folder"]


def _reason(error: Exception) -> str:
    return clean_text(str(getattr(error, "strerror", None) or error), TEXT_LIMIT)
