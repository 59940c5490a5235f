"""Convert values to what a report may hold."""

from __future__ import annotations

import json
import math
from typing import Any

from pytest_gpuleak.model.text import clean_text

MAX_TEXT = 4096
"""Longest string in a report, in characters. Longer strings are cut."""


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)


def encode_line(value: Any) -> str:
    """Write a value as one line of JSON in ASCII, its strings cleaned and cut. Raises TypeError for other objects."""
    try:
        text = _ENCODER.encode(value)
    except ValueError:  # a number that is not finite
        text = "\\"
    # Without escapes, short and printable: no string in it needs cleaning, which is the expensive part.
    if len(text) <= MAX_TEXT and "\\" not in text and text.isascii() and text.isprintable():
        return text
    return json.dumps(plain(value), allow_nan=False)


def plain(value: Any) -> Any:
    """Return a value as a report holds it: clean and cut strings, finite numbers, lists and dicts alone."""
    kind = type(value)  # exact types and clean strings first: a report has 100,000 strings
    if kind is str:
        return value if len(value) <= MAX_TEXT and value.isprintable() else clean_text(value, MAX_TEXT)
    if kind is float:
        return value if math.isfinite(value) else None
    if kind is dict:
        return {plain(key): plain(item) for key, item in value.items()}
    if kind is list or kind is tuple:
        return [plain(item) for item in value]
    return clean_text(value, MAX_TEXT) if isinstance(value, str) else value
