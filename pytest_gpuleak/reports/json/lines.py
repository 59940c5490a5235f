"""The JSON report in pieces, one test's record a line, for reports that do not fit into memory."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

from pytest_gpuleak.model.records import SCHEMA
from pytest_gpuleak.reports.json.write import encode_report

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pytest_gpuleak.model.records import RunReport


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
