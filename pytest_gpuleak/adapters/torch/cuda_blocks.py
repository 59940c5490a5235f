"""Keep the blocks that a run would take on a CUDA device, in the order in which they begin and end."""

from __future__ import annotations

from typing import Final

from pytest_gpuleak.adapters.probe_protocol import TakenBlocks
from pytest_gpuleak.model.text import clean_text

COPIED: Final = "a tensor was copied to the device that it was on, of which one may be the host's"
GIVEN: Final = "a tensor was given a storage that was loaded or made by itself, which may be the host's, or older"


class BlockLog:
    """The blocks by number, with their `sizes`, which a rule may change, and why the estimate may be wrong."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.copied: set[int] = set()
        self.given: set[int] = set()
        self._entries: list[tuple[int, bool]] = []
        """Each block that begins, and that ends."""
        self._reusing: tuple[int, int | None, int] = -1, None, 0
        """How long the log is after the last operator that may have an argument's memory, that one's number, and before it."""
        self._unknown: set[int] = set()
        self._unknown_names: dict[str, None] = {}
        self._lacks: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def begin(self, size: int) -> int:
        """Note a block that begins; return its number."""
        number = len(self.sizes)
        self.sizes.append(size)
        self._entries.append((number, True))
        return number

    def end(self, number: int) -> None:
        """Note that a block ends: before the operator that may have its memory, where it ends right after that."""
        at = len(self._entries)
        self._entries.insert(self._reusing[2] if self._reusing[:2] == (at, number) else at, (number, False))

    def pulse(self, size: int) -> int:
        """Note a block that an operator takes and gives back."""
        number = self.begin(size)
        self._entries.append((number, False))
        return number

    def may_reuse(self, number: int | None, before: int) -> None:
        """Note that the last operator, from the entry `before` on, may have the memory of a block."""
        self._reusing = len(self._entries), number, before

    def omit(self, numbers: list[int]) -> None:
        """Count blocks as of no size: CUDA does not take them."""
        for number in numbers:
            self.sizes[number] = 0

    def doubt(self, name: str, *numbers: int) -> None:
        """Note blocks that CUDA may not take, within an operator of this name."""
        self._unknown.update(numbers)
        self._unknown_names[name] = None

    def lack(self, why: str) -> None:
        """Note what cannot be computed."""
        self._lacks[why] = None

    def fault(self, error: Exception) -> None:
        """Note that the record failed."""
        self.lack(f"the record failed ({type(error).__name__}: {clean_text(str(error), 80)})")

    def taken(self, *, autocast: bool) -> TakenBlocks:
        """Return what was taken."""
        doubts = [f"what {name} takes inside is not known" for name in self._unknown_names]
        doubts += [COPIED] * bool(self.copied) + [GIVEN] * bool(self.given)
        return TakenBlocks(
            least=self._without(self._unknown | self.copied | self.given),
            most=self._without(set()),
            doubts=tuple(doubts),
            lacks=tuple(self._lacks),
            autocast=autocast,
        )

    def _without(self, left_out: set[int]) -> list[tuple[int, int]]:
        entries = (entry for entry in self._entries if entry[0] not in left_out)
        return [(number, self.sizes[number] if begins else 0) for number, begins in entries]
