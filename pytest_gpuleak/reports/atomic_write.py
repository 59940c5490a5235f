"""Write a file in one step: a reader sees the old file or the new one, never a part."""

from __future__ import annotations

import contextlib
import secrets
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def make_folders(paths: Iterable[Path]) -> None:
    """Make the missing folders of files. A folder that cannot be made is told when its file is written."""
    for path in paths:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)


def write_text(text: str, path: Path) -> None:
    """Write text to a file as UTF-8 in one step.

    A replaced file keeps its permissions, a symbolic link its name. Raises OSError: the old file stays, and no draft.
    """
    target = path.resolve()
    # Not tempfile, whose files only their owner can read: a report obeys the umask.
    draft = target.parent / f".gpuleak-{secrets.token_hex(8)}.tmp"
    try:
        with draft.open("x", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
        with contextlib.suppress(FileNotFoundError):  # a new report keeps the umask's permissions
            draft.chmod(stat.S_IMODE(target.stat().st_mode))
        draft.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):  # never created: report the first error
            draft.unlink()
        raise
