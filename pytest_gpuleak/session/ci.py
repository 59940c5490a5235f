"""Read from the environment where a run takes place: GitHub Actions, GitLab CI."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pytest_gpuleak.session.ranks import Rank, rank_of

if TYPE_CHECKING:
    from collections.abc import Mapping


class Surroundings(NamedTuple):
    """Where a run takes place: the service, its `project` folder, a step's `summary`, and the `rank` for file names."""

    github: bool = False
    summary: Path | None = None
    gitlab: bool = False
    project: Path | None = None
    rank: Rank | None = None


def read_surroundings(environ: Mapping[str, str]) -> Surroundings | None:
    """Read where the run takes place from environment variables; None where nothing is to be published."""
    github = environ.get("GITHUB_ACTIONS") == "true"
    gitlab = environ.get("GITLAB_CI") == "true"
    # The summary counts wherever it is set: runners that act like GitHub's set it too.
    summary = environ.get("GITHUB_STEP_SUMMARY")
    if not (github or gitlab or summary):
        return None
    project = environ.get("GITHUB_WORKSPACE" if github else "CI_PROJECT_DIR") if github or gitlab else None
    return Surroundings(
        github, Path(summary) if summary else None, gitlab, Path(project) if project else None, rank_of(environ)
    )
