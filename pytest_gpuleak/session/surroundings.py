"""Read from the environment where a run takes place: GitHub Actions, GitLab CI, and which rank of a distributed run it is.

Each rank writes reports of its own, which torchrun's variables tell apart:
https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class Rank(NamedTuple):
    """This process's number, from 0, among the processes that run the same tests together, and their total."""

    number: int
    total: int

    @property
    def name(self) -> str:
        """Name in records and paths: ``rank3``."""
        return f"rank{self.number}"


def rank_of(environment: Mapping[str, str]) -> Rank | None:
    """Read this process's rank from ``RANK`` and ``WORLD_SIZE``; None without other ranks or usable values."""
    number, count = (_whole(environment.get(name, "")) for name in ("RANK", "WORLD_SIZE"))
    return None if number is None or count is None or count < 2 or number >= count else Rank(number, count)


def path_of_rank(path: Path, rank: Rank | None) -> Path:
    """Return the path of a rank's report: ``report.rank3.json`` for ``report.json``; unchanged without a rank."""
    return path if rank is None else path.with_name(f"{path.stem}.{rank.name}{path.suffix}")


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


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
