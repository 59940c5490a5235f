"""Ranks of a distributed run: `torchrun` and its like start pytest once a rank, each with the same command line.

Each rank writes reports of its own, `report.rank3.json` where the command line says `report.json`, which
``gpuleak merge report.rank*.json`` puts together. A rank is told by the variables that torchrun sets, and that
`torch.distributed` reads: https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class Rank(NamedTuple):
    """This process among those that run the same tests together: its number, from 0, and how many there are."""

    number: int
    total: int

    @property
    def name(self) -> str:
        """How a test's record and a report's path name it: ``rank3``."""
        return f"rank{self.number}"


def rank_of(environment: Mapping[str, str]) -> Rank | None:
    """Read which rank this process is; None where it is the only one, or where the variables say nothing of sense.

    Args:
        environment: the process's environment: ``RANK`` and ``WORLD_SIZE`` count.
    """
    number, count = (_whole(environment.get(name, "")) for name in ("RANK", "WORLD_SIZE"))
    return None if number is None or count is None or count < 2 or number >= count else Rank(number, count)


def path_of_rank(path: Path, rank: Rank | None) -> Path:
    """Tell where a rank writes a report: ``report.rank3.json`` for ``report.json``; the path itself without a rank."""
    return path if rank is None else path.with_name(f"{path.stem}.{rank.name}{path.suffix}")


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
