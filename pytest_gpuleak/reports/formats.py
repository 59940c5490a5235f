"""The formats of report files: which exist, whether a path can be written, and writing one."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from pytest_gpuleak.reports.atomic_write import write_text

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpuleak.model.records import RunReport

WRITERS = {
    ".json": "json",
    ".html": "html",
    ".sarif": "sarif",
    ".md": "markdown",
}
"""The formats by suffix of the path, in lower case. A new format is a new row, and a module with `encode_report`."""

_FOLDERS = {"json": "json.write", "html": "html.page"}
"""Modules of formats that are folders. Any other format is a module of its name."""


def render(report: RunReport, form: str) -> str:
    """Render a report in a format, whose module is imported now."""
    module: Any = importlib.import_module(f"pytest_gpuleak.reports.{_FOLDERS.get(form, form)}")
    text: str = module.encode_report(report)
    return text


def write_report(report: RunReport, path: Path) -> None:
    """Write a report in the format of the path's suffix. Raises OSError, and KeyError for an unknown suffix."""
    write_text(render(report, WRITERS[path.suffix.lower()]), path)


def why_not_accepted(path: Path, *, folder_is_made: bool = False) -> str | None:
    """Return why no report can be written to a path, as the end of a sentence that it begins; None where it can."""
    *others, last = WRITERS
    exists = "" if folder_is_made else "exists and "
    accepts = f"accepted is a file ({', '.join(others)} or {last}) in a folder that {exists}may be written to"
    try:
        if path.is_dir():
            return f"is a folder; {accepts}"
        if path.suffix.lower() not in WRITERS:
            return f"names no known format; {accepts}"
        folder = path.parent
        while folder_is_made and not folder.exists() and folder != folder.parent:
            folder = folder.parent
        if not folder.is_dir():
            fault = "does not exist" if folder == path.parent and not folder.exists() else "is a file"
            return f"lies in a folder that {fault}; {accepts}"
        # Replacing the file in one step takes the right to write to the folder.
        if not os.access(folder, os.W_OK | os.X_OK) or (path.exists() and not os.access(path, os.W_OK)):
            return f"may not be written (permission denied); {accepts}"
    except (OSError, ValueError) as error:  # a name too long, or with a NUL
        return f"cannot be used ({error}); {accepts}"
    return None
