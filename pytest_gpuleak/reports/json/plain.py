"""Values as they stand in a report."""

from __future__ import annotations

import math
from typing import Any

from pytest_gpuleak.model.text import clean_text

MAX_TEXT = 4096
"""Characters of the longest string in a report; a longer one is cut."""


def plain(value: Any) -> Any:
    """The value as it stands in a report: strings cleaned and cut, no number that is not finite, lists and dicts alone."""
    kind = type(value)  # exact types, and what is clean as it is: a report has a hundred thousand strings
    if kind is str:
        return value if len(value) <= MAX_TEXT and value.isprintable() else clean_text(value, MAX_TEXT)
    if kind is float:
        return value if math.isfinite(value) else None
    if kind is dict:
        return {plain(key): plain(item) for key, item in value.items()}
    if kind is list or kind is tuple:
        return [plain(item) for item in value]
    return clean_text(value, MAX_TEXT) if isinstance(value, str) else value
