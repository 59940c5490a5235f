"""The commands that a page of docs/ shows in blocks below ``<!-- KIND: NAME -->``, as a CI service would run them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]


def blocks_of(page: str, kind: str) -> dict[str, tuple[str, str]]:
    """The blocks of a page by their names, each with its language and its text without indentation."""
    marked = re.compile(rf"^( *)<!-- {kind}: (\S+) -->\n\1```(\w+)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return {
        name: (language, re.sub(f"^{indent}", "", block, flags=re.MULTILINE))
        for indent, name, language, block in marked.findall(text)
    }


def commands_in(block: tuple[str, str]) -> list[str]:
    """The commands in a block, in their order: a script of ``sh`` as a whole, of other files those that run something."""
    language, text = block
    if language == "sh":
        return [text]
    if language == "groovy":
        return re.findall(r"sh '(.*)'", text)
    found: list[str] = []
    _collect(yaml.safe_load(text), found)
    return [command for command in found if command.startswith(("pytest ", "gpuleak ", "buildkite-agent "))]


def _collect(value: Any, found: list[str]) -> None:
    if isinstance(value, str):
        found.append(value)
    elif isinstance(value, (dict, list)):
        for part in value.values() if isinstance(value, dict) else value:
            _collect(part, found)
