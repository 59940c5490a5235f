"""Sizes in bytes: reading them from text."""

from __future__ import annotations

import re

MIB = 1024 * 1024
"""Bytes of one MiB, the unit of a size given as a plain number."""

# GPU tools and this plugin's `-mb` options say MB and mean powers of 1024, so "MB" does too.
_UNITS: dict[str, int] = {
    "b": 1,
    **{prefix + end: 1024**power for power, prefix in enumerate("kmgt", 1) for end in ("ib", "b")},
}

_SIZE = re.compile(r"([\d.]+)\s*([a-z]+)", re.ASCII | re.IGNORECASE)

_NUMBER = re.compile(r"\d+\.?\d*|\.\d+", re.ASCII)


def parse_size(value: object) -> int:
    """Read a size in bytes: a number of MiB, or text such as `"512KiB"` (or KB). Raises ValueError for any other."""
    unit = MIB
    if isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
        if match[2].lower() not in _UNITS:
            raise ValueError("not a unit")
        value, unit = match[1], _UNITS[match[2].lower()]
    return round(parse_number(value) * unit)


def parse_number(value: object) -> float:
    """Read a number from 0, or its text. Raises ValueError for anything else, NaN and infinity included."""
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        value = float(value)
    # NaN fails the comparison too.
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 2**63:
        return float(value)
    raise ValueError("not a number from 0")
