"""Read a JSON report of any origin. Nothing that it names is opened or run, and its counts are recomputed."""

from __future__ import annotations

import datetime
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from pytest_gpuleak.model.devices import LostDevice
from pytest_gpuleak.model.finding_codec import encode
from pytest_gpuleak.model.findings import FixtureRecord, KnownLeak
from pytest_gpuleak.model.first_init import FirstInit
from pytest_gpuleak.model.helpers import HelperMemory
from pytest_gpuleak.model.records import SCHEMA, RunReport, TestRecord
from pytest_gpuleak.model.summary import CleanUp, count_known, find_dearest, summarise
from pytest_gpuleak.model.text import clean_text
from pytest_gpuleak.reports.json.journal import recover
from pytest_gpuleak.reports.json.validate import WrongValueError, check, check_usage, describe_value

if TYPE_CHECKING:
    from typing import BinaryIO

MAX_BYTES = 1024**3
"""Largest report that is read, in bytes. Reading takes several times as much memory."""

ACCEPTED = "accepted is a JSON report that pytest --gpu-leak-report wrote, version 1 of the format"
"""End of each line that refuses a report."""

_VERSION = re.compile(r"pytest-gpuleak/report/([1-9][0-9]{0,8})", re.ASCII)
_NAME_LIMIT = 300
_COUNTS = {"known", "stale", "rerun", "budgets_unchecked", "deselected"}


class UnusableReport(ValueError):  # noqa: N818 - a user reads the message, and no name of an exception
    """The input is no readable report. The message is one line: the input, what is wrong, what is accepted."""


def read_report(source: Path | Literal["-"]) -> RunReport:
    """Read and check a JSON report from a file, or from standard input (``"-"``).

    Unknown keys are ignored, missing newer ones take their defaults, and a journal that was cut is incomplete. Raises
    UnusableReport for an input that is missing, no report, damaged, or of a newer version.
    """
    name = "standard input" if source == "-" else clean_text(str(source), _NAME_LIMIT)
    try:
        return _report(_document(_read(source)))
    except _RefusedError as error:
        what = str(error)
    except WrongValueError as error:
        what = f"holds a wrong value: {error}"
    except RecursionError:
        what = "is nested too deep"
    except MemoryError:
        what = "is too large for the memory of this machine"
    raise UnusableReport(f"{name} {what}; {ACCEPTED}")


class _RefusedError(Exception):
    """The middle part of the message: what is wrong."""


def _read(source: Path | Literal["-"]) -> str:
    try:
        if source == "-":
            if sys.stdin is None:  # closed before the program started
                raise _RefusedError("is closed")
            data = _bounded(sys.stdin.buffer)
        elif Path(source).is_dir():
            raise _RefusedError("is a folder")
        else:
            with Path(source).open("rb") as stream:
                data = _bounded(stream)
    except FileNotFoundError:
        raise _RefusedError("does not exist") from None
    except OSError as error:
        raise _RefusedError(f"cannot be read ({error.strerror or error})") from None
    except ValueError as error:  # the name has a NUL
        raise _RefusedError(f"cannot be read ({error})") from None
    if not data.strip():
        raise _RefusedError("is empty")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _RefusedError(f"is no text in UTF-8 (at byte {error.start})") from None


def _bounded(stream: BinaryIO) -> bytes:
    data = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise _RefusedError(f"is larger than {MAX_BYTES // 1024**2} MiB")
    return data


def _document(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text, object_pairs_hook=_object, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        rescued = recover(text)
        if rescued is None:
            if error.pos >= len(text.rstrip()):
                raise _RefusedError("breaks off in the middle: it is truncated") from None
            raise _RefusedError(f"is no JSON (line {error.lineno}, column {error.colno}: {error.msg})") from None
        document = rescued
    except ValueError:  # Python limits the digits of integers
        raise _RefusedError("holds a number of more than 64 bits") from None
    if not isinstance(document, dict):
        raise _RefusedError(f"is JSON, but no report: it is {describe_value(document)}")
    schema = document.get("schema")
    if schema != SCHEMA:
        version = _VERSION.fullmatch(schema) if isinstance(schema, str) else None
        if version is not None:
            raise _RefusedError(
                f"was written by a newer version of pytest-gpuleak (version {version[1]} of the format)"
            )
        said = "no schema" if "schema" not in document else f"the schema {describe_value(schema)}"
        raise _RefusedError(f"is JSON, but no report of pytest-gpuleak: it has {said}")
    return document


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _RefusedError(f"has the key {describe_value(key)} twice in one object")
            seen.add(key)
    return found


def _refuse_constant(constant: str) -> Any:
    raise _RefusedError(f"holds {constant}, which is no number of JSON")


def _report(document: dict[str, Any]) -> RunReport:
    for key in ("tests", "fixtures"):
        if key not in document:
            raise WrongValueError("is missing").at(key)
    tests = check(tuple[TestRecord, ...], document["tests"], "tests")
    fixtures = check(tuple[FixtureRecord, ...], document["fixtures"], "fixtures")
    stale = check(tuple[KnownLeak, ...], document.get("stale", []), "stale")
    summary = check(dict[str, Any], document.get("summary", {}), "summary")
    usage = check_usage(summary.get("memory") or {})
    for key in _COUNTS & summary.keys():
        if type(summary[key]) is not int:
            raise WrongValueError(f"is {describe_value(summary[key])}, which is not a whole number").at(
                f"summary.{key}"
            )
    for key, kind in _FACTS.items():
        if key in summary:
            summary[key] = encode(check(kind, summary[key], f"summary.{key}"))
    if "known" in summary:
        summary["known"] = count_known(tests, fixtures)
    if "stale" in summary:
        summary["stale"] = len(stale)
    dearest = summary.get("dearest")
    incomplete = document.get("incomplete")
    if not (incomplete is None or isinstance(incomplete, str)):
        raise WrongValueError(f"is {describe_value(incomplete)}, which is not text or null").at("incomplete")
    faults = check(tuple[str, ...], document.get("faults", []), "faults")
    return RunReport(
        created=_time(document.get("created")),
        environment=check(dict[str, Any], document.get("environment", {}), "environment"),
        policy=check(dict[str, Any], document.get("policy", {}), "policy"),
        summary={
            **summary,
            **summarise(tests, fixtures),
            "memory": usage,
            "dearest": find_dearest(tests, len(dearest) if isinstance(dearest, list) else 0),
        },
        tests=tests,
        fixtures=fixtures,
        stale=stale,
        # An empty reason counts: its writer said that tests are missing.
        incomplete=None if incomplete is None else incomplete or "no reason is given",
        faults=faults,
    )


_FACTS: Final[dict[str, Any]] = {
    "first_init": FirstInit,
    "lost_devices": tuple[LostDevice, ...],
    "cleanup": tuple[CleanUp, ...],
    "helpers": tuple[HelperMemory, ...],
    "run_s": float,
}
"""What a summary has beside counts that do not follow from the records, with its type."""


def _time(value: object) -> str:
    if isinstance(value, str):
        try:
            # Python 3.10 does not read the Z for UTC.
            moment = datetime.datetime.fromisoformat(re.sub("Z$", "+00:00", value))
        except ValueError:
            pass
        else:
            if moment.tzinfo is not None and "T" in value:
                return value
    raise WrongValueError(f"is {describe_value(value)}, which is not a time as 2026-11-20T19:17:00+00:00").at("created")
