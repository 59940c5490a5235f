"""Tell apart the ranks of a distributed run, by torchrun's variables, so that each writes reports of its own.

https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


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
