"""The JSON report in pieces, one test's record a line, for reports that do not fit into memory."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

from pytest_gpuleak.model.records import SCHEMA, encode
from pytest_gpuleak.reports.json.plain import MAX_TEXT, plain
from pytest_gpuleak.reports.json.write import encode_report

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pytest_gpuleak.model.records import RunReport, TestRecord


def encode_line(record: TestRecord) -> str:
    """Write a test's record as one line of JSON in ASCII, its strings cleaned and cut."""
    encoded = encode(record)
    text = json.dumps(encoded, ensure_ascii=False)
    # Without escapes, short and printable: no string in it needs cleaning, which is the expensive part.
    untouched = len(text) <= MAX_TEXT and "\\" not in text and text.isascii() and text.isprintable()
    if untouched and "NaN" not in text and "Infinity" not in text:
        return text
    return json.dumps(plain(encoded), allow_nan=False)


def encode_pieces(outline: RunReport, lines: Iterable[str]) -> Iterator[str]:
    """Write a report as JSON text, piece by piece."""
    document = json.loads(encode_report(dataclasses.replace(outline, tests=())))
    del document["schema"], document["tests"]
    yield "{" + f'"schema": {json.dumps(SCHEMA)},\n'
    for key, value in document.items():
        yield f"{json.dumps(key)}: {json.dumps(value)},\n"
    yield '"tests": [\n'
    between = ""
    for line in lines:
        yield between + line
        between = ",\n"
    yield "\n]}\n"
