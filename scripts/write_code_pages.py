"""Write docs/findings, one page a code, from the table in pytest_gpuleak/model/codes.

Usage: python scripts/write_code_pages.py [--check]
"""

from __future__ import annotations

import sys
from pathlib import Path

from pytest_gpuleak.model.codes.table import CODES, TOPICS, page

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "findings"
NOTE = "<!-- Written by scripts/write_code_pages.py from pytest_gpuleak/model/codes: change it there. -->\n"
INDEX = """# Codes of findings

Each kind of finding has a code, and each pattern that a `fix` is about. The code stands behind the `fix`, in the JSON
report (`code`), in SARIF (`taxa`) and on the HTML page. `gpuleak explain GL101` prints a page in the terminal.
"""


def pages() -> dict[str, str]:
    """Return the text of each file by its name."""
    topics = [
        "\n".join([f"## {topic}\n", "| code | pattern |", "| --- | --- |"])
        + "".join(f"\n| [{code.id}]({code.id}.md) | {code.title} |" for code in rows)
        for topic, rows in TOPICS.items()
    ]
    index = "\n\n".join([INDEX.rstrip(), *topics]) + "\n"
    files = {"index.md": index, **{f"{code.id}.md": page(code) for code in CODES.values()}}
    return {name: f"{NOTE}\n{text}" for name, text in files.items()}


def differing(folder: Path) -> list[str]:
    """Return the names of files that differ, are missing, or belong to no code."""
    wanted = pages()
    found = {path.name: path.read_text("utf-8") for path in folder.glob("*.md")}
    return sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))


def main() -> int:
    """Write what differs, or with `--check` tell."""
    names = differing(FOLDER)
    if "--check" in sys.argv[1:]:
        print("\n".join(f"docs/findings/{name} is not current" for name in names) or "docs/findings is current")
        return int(bool(names))
    FOLDER.mkdir(exist_ok=True)
    wanted = pages()
    for name in names:
        if name in wanted:
            (FOLDER / name).write_text(wanted[name], encoding="utf-8")
        else:
            (FOLDER / name).unlink()
    print(f"docs/findings: {len(names)} files changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
