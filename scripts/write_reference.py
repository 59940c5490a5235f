"""Write the reference from the code: docs/findings from the table of codes, docs/options.md from that of options.

The table of limits in docs/how-it-works.md comes from engine/limits.py.

Usage: python scripts/write_reference.py [--check]
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

from pytest_gpuleak.engine import limits
from pytest_gpuleak.model.codes.table import CODES, TOPICS, page
from pytest_gpuleak.session.config.values import kind_of
from pytest_gpuleak.session.options import MARKERS, OPTIONS

DOCS = Path(__file__).resolve().parent.parent / "docs"
NOTE = "<!-- Written by scripts/write_reference.py from {source}: change it there. -->\n\n"
INDEX = """# Codes of findings

Each kind of finding has a code, and each pattern that a `fix` is about. The code stands behind the `fix`, in the JSON
report (`code`), in SARIF (`taxa`) and on the HTML page. `gpuleak explain GL101` prints a page in the terminal.
"""
OPTIONS_HEAD = """# Options and markers

Each option may be given on the command line or, by the name in the second column, in pytest's ini (`pyproject.toml`,
`pytest.ini`, `tox.ini`). The command line wins over the ini, and a marker over both; `--no-gpu-leak` wins over all else. A
value that is not accepted ends the run with a usage error before any test. Sizes are a number of MiB, or a text such as
`512KiB` or `1.5GiB`.

| option | in the ini | accepts | default | meaning |
| --- | --- | --- | --- | --- |
"""


def pages() -> dict[str, str]:
    """Return the text of each file by its path below docs."""
    codes = NOTE.format(source="pytest_gpuleak/model/codes")
    files = {f"findings/{code.id}.md": codes + page(code) for code in CODES.values()}
    files["findings/index.md"] = codes + _index()
    files["how-it-works.md"] = _with_limits((DOCS / "how-it-works.md").read_text("utf-8"))
    files["options.md"] = NOTE.format(source="pytest_gpuleak/session/options.py") + _options()
    return files


def _index() -> str:
    topics = [
        "\n".join([f"## {topic}\n", "| code | pattern |", "| --- | --- |"])
        + "".join(f"\n| [{code.id}]({code.id}.md) | {code.title} |" for code in rows)
        for topic, rows in TOPICS.items()
    ]
    return "\n\n".join([INDEX.rstrip(), *topics]) + "\n"


def _with_limits(text: str) -> str:
    """Return the page with the table of the engine's limits between its two marks."""
    tree = ast.parse(Path(limits.__file__).read_text("utf-8"))
    rows = ["| limit | value | what it is for |", "| --- | --- | --- |"]
    for named, told in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(named, ast.AnnAssign) and isinstance(told, ast.Expr) and isinstance(told.value, ast.Constant):
            name = ast.unparse(named.target)
            value = getattr(limits, name)
            shown = f"{value:,}" if isinstance(value, int) else str(value)
            rows.append(f"| `{name}` | {shown} | {' '.join(str(told.value.value).split())} |")
    table = "\n".join(rows)
    return re.sub(
        r"(<!-- limits: .*? -->\n).*?(<!-- end of limits -->)",
        lambda m: f"{m[1]}{table}\n{m[2]}",
        text,
        flags=re.DOTALL,
    )


def _options() -> str:
    rows = [
        f"| `{f'{option.flag} {option.metavar}'.rstrip()}` | `{option.ini}` | {kind_of(option).accepts} "
        f"| {option.default} | {option.help} |"
        for option in OPTIONS
    ]
    markers = [f"- `@pytest.mark.{name}`: {text}" for name, _, text in (line.partition(": ") for line in MARKERS)]
    heads = ["", "", "## Markers", "", "The arguments of `gpu_leak` are options of the same name.", ""]
    return OPTIONS_HEAD + "\n".join([*rows, *heads[1:], *markers]) + "\n"


def differing(docs: Path) -> list[str]:
    """Return the paths of files that differ, are missing, or belong to no code."""
    wanted = pages()
    names = {f"findings/{path.name}" for path in (docs / "findings").glob("*.md")} | wanted.keys()
    return sorted(name for name in names if wanted.get(name) != _read(docs / name))


def _read(path: Path) -> str | None:
    return path.read_text("utf-8") if path.exists() else None


def main() -> int:
    """Write what differs, or with `--check` tell."""
    names = differing(DOCS)
    if "--check" in sys.argv[1:]:
        print("\n".join(f"docs/{name} is not current" for name in names) or "the reference is current")
        return int(bool(names))
    (DOCS / "findings").mkdir(exist_ok=True)
    wanted = pages()
    for name in names:
        if name in wanted:
            (DOCS / name).write_text(wanted[name], encoding="utf-8")
        else:
            (DOCS / name).unlink()
    print(f"docs: {len(names)} files changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
