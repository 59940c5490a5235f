"""Records of many tests in little memory: lines of JSON, compressed in blocks."""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING

from pytest_gpuleak.model.outcomes import decode_test, encode_test
from pytest_gpuleak.reports.json.plain import encode_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_gpuleak.model.records import TestRecord

_BLOCK = 64
"""Records in a block. Similar records shrink to a tenth together, and hardly alone."""


class PackedTests:
    """A list of tests' records with replaceable items. As objects, 200,000 records take some 250 MB."""

    def __init__(self) -> None:
        self._blocks: list[bytes] = []
        self._open: list[str] = []
        self._replaced: dict[int, str] = {}
        self._unpacked: tuple[int, list[str]] = (-1, [])

    def __len__(self) -> int:
        return len(self._blocks) * _BLOCK + len(self._open)

    def __getitem__(self, index: int) -> TestRecord:
        return decode_test(json.loads(self._line(index)))

    def __iter__(self) -> Iterator[TestRecord]:
        for line in self.lines():
            yield decode_test(json.loads(line))

    def append(self, record: TestRecord) -> None:
        """Append a record."""
        self._open.append(encode_line(encode_test(record)))
        if len(self._open) == _BLOCK:
            self._blocks.append(zlib.compress("\n".join(self._open).encode("ascii"), 1))
            self._open = []

    def replace(self, index: int, record: TestRecord) -> None:
        """Replace a record."""
        self._replaced[index] = encode_line(encode_test(record))

    def lines(self) -> Iterator[str]:
        """Yield each record as one line of JSON, as in a report."""
        for index in range(len(self)):
            yield self._line(index)

    def _line(self, index: int) -> str:
        replaced = self._replaced.get(index)
        if replaced is not None:
            return replaced
        number, place = divmod(index, _BLOCK)
        if number == len(self._blocks):
            return self._open[place]
        if self._unpacked[0] != number:
            self._unpacked = number, zlib.decompress(self._blocks[number]).decode("ascii").split("\n")
        return self._unpacked[1][place]
