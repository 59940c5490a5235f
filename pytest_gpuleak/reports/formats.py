"""Reports that are files: which formats there are, whether a path can be written, and writing one."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_gpuleak.model.records import RunReport

WRITERS = {".json": "json", ".html": "html", ".sarif": "sarif", ".md": "markdown"}
"""The name of each format, by the path's suffix in lower case. A format more is one row more."""

_FOLDERS = {"json": "json.write", "html": "html.page"}
"""The module of a format that is a folder; any other format is a module of its name."""


def load_writer(form: str) -> Any:
    """Import the module that writes a format: it has a function `write(report, path)`.

    Imported when a report of that format is written: a template engine is no business of a run that asks for JSON.
    """
    return importlib.import_module(f"pytest_gpuleak.reports.{_FOLDERS.get(form, form)}")


def write_report(report: RunReport, path: Path) -> None:
    """Write a report in the format that the path's suffix names. Raises OSError, and KeyError for another suffix."""
    load_writer(WRITERS[path.suffix.lower()]).write(report, path)


def why_not_accepted(path: Path) -> str | None:
    """Tell why no report can be written to a path, as the end of a sentence that begins with it; None: it can be."""
    *others, last = WRITERS
    accepts = f"accepted is a file ({', '.join(others)} or {last}) in a folder that exists and may be written to"
    try:
        if path.is_dir():
            return f"is a folder; {accepts}"
        if path.suffix.lower() not in WRITERS:
            return f"names no known format; {accepts}"
        if not path.parent.is_dir():
            return f"lies in a folder that does not exist; {accepts}"
        # A report replaces the file in one step, which takes the right to write to the folder.
        if not os.access(path.parent, os.W_OK | os.X_OK) or (path.exists() and not os.access(path, os.W_OK)):
            return f"may not be written (permission denied); {accepts}"
    except (OSError, ValueError) as error:  # a name too long, or with a NUL
        return f"cannot be used ({error}); {accepts}"
    return None
