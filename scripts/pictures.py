"""Take the pictures of README and docs: the terminal and the HTML report of the leaks in examples/, in Chromium.

Usage: python scripts/pictures.py [--out FOLDER] [--all]

It runs the examples, so it takes a minute, and needs torch, playwright and a Chromium: on the path, or named by CHROMIUM.
Without one of them it says so, and ends with status 0.
"""

from __future__ import annotations

import argparse
import html
import importlib.util
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SIZES = {"desktop": {"width": 1280, "height": 1100}, "phone": {"width": 390, "height": 844}}
COLOURS = {"31": "#f47067", "32": "#57ab5a", "33": "#c69026", "36": "#39c5cf"}
SGR = re.compile(r"\x1b\[([\d;]*)m")
WITHOUT_TIMES = """() => {
  for (const label of document.querySelectorAll(".tiles dt"))
    if (/^(in tests|check )/.test(label.textContent)) label.parentElement.remove();
}"""
"""Takes the times, which are those of one machine, out of the head of the page."""
TERMINAL = """<!doctype html><meta charset="utf-8"><style>
body {{ margin: 0; background: #22272e; }}
pre {{ margin: 0; padding: 16px 20px; color: #d5dbe3; font: 13px/1.4 "DejaVu Sans Mono", monospace; width: max-content; }}
</style><pre>{}</pre>"""


def missing() -> str:
    """Return what is needed and not there, as words; empty where all is."""
    packages = [name for name in ("torch", "playwright") if importlib.util.find_spec(name) is None]
    if packages:
        return " and ".join(packages)
    return "" if browser() else f"a Chromium ({', '.join(BROWSERS)}, or CHROMIUM)"


def browser() -> str | None:
    """Return the browser's path."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)


def run_examples(folder: Path) -> str:
    """Run the examples as a user does, with an HTML report; what the terminal shows."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV_", "NO_COLOR"))}
    off = [option for name in ("cacheprovider", "randomly") for option in ("-p", f"no:{name}")]
    command = [
        "-m",
        "pytest",
        *off,
        "-o",
        "addopts=",
        "--color=yes",
        "--gpu-leak",
        f"--gpu-leak-report={folder}/leaks.html",
    ]
    done = subprocess.run(
        [sys.executable, *command, "examples"], cwd=ROOT, env={**kept, "COLUMNS": "80", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if not (folder / "leaks.html").exists():
        sys.exit(done.stdout + done.stderr)
    return done.stdout


def section_of(output: str) -> str:
    """Return the section GPU LEAKS without the counts below it, whose times are those of one machine."""
    lines = output.splitlines()
    first = next(index for index, line in enumerate(lines) if " GPU LEAKS " in line)
    last = next(index for index, line in enumerate(lines) if index > first and re.match(r"gpu-leak: \d+ leaked", line))
    return "\n".join(lines[first:last]).rstrip()


def as_page(text: str) -> str:
    """Write a terminal's output, with its colours, as a page."""
    body, depth = "", 0
    for index, part in enumerate(SGR.split(text)):
        if index % 2 == 0:
            body += html.escape(part)
            continue
        codes = part.split(";")
        if codes == [""] or "0" in codes:
            body, depth = body + "</span>" * depth, 0
        style = "".join(f"color:{COLOURS[code]};" for code in codes if code in COLOURS)
        style += "font-weight:bold;" * ("1" in codes) + "opacity:.65;" * ("2" in codes)
        if style:
            body, depth = body + f'<span style="{style}">', depth + 1
    return TERMINAL.format(body + "</span>" * depth)


def take(chromium: Any, report: Path, terminal: Path, out: Path, *, every: bool) -> None:
    """Take the pictures that README and docs show, or with `every` the whole page in each way that it may be seen."""
    if every:
        for (name, size), scheme, scripts in itertools.product(SIZES.items(), ("light", "dark"), (True, False)):
            page = _opened(chromium, report, size, scheme, scripts=scripts)
            page.screenshot(
                path=out / f"report-{name}-{scheme}{'' if scripts else '-without-scripts'}.png", full_page=True
            )
            page.context.close()
    else:
        for name, scheme in (("desktop", "light"), ("phone", "dark")):
            page = _opened(chromium, report, SIZES[name], scheme, scripts=True)
            page.evaluate(WITHOUT_TIMES)
            page.evaluate("scrollTo(0, 0)")
            page.screenshot(path=out / f"report-{name}.png")
            page.context.close()
    page = chromium.new_context(viewport=SIZES["desktop"]).new_page()
    page.goto(terminal.as_uri())
    page.locator("pre").screenshot(path=out / "terminal.png")


def _opened(chromium: Any, report: Path, size: dict[str, int], scheme: str, *, scripts: bool) -> Any:
    """Open the report with its first finding unfolded."""
    context = chromium.new_context(viewport=size, color_scheme=scheme, java_script_enabled=scripts)
    page = context.new_page()
    page.goto(report.as_uri() + ("#finding-1" if scripts else ""))
    if not scripts:
        page.locator("#finding-1 summary").click()
    return page


def main() -> None:
    """Run the examples, and take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "pictures")
    parser.add_argument("--all", action="store_true", help="each width, scheme, with scripts and without, for a look")
    given = parser.parse_args()
    out = given.out
    lacking = missing()
    if lacking:
        print(f"pictures: skipped, since {lacking} is missing")
        return
    from playwright.sync_api import sync_playwright

    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        output = run_examples(folder)
        (folder / "terminal.html").write_text(as_page(section_of(output)), encoding="utf-8")
        with sync_playwright() as playwright:
            # A container's root user has no sandbox to give; the pages are our own.
            chromium = playwright.chromium.launch(executable_path=browser(), args=["--no-sandbox"])
            take(chromium, folder / "leaks.html", folder / "terminal.html", out, every=given.all)
            chromium.close()
    print(f"pictures: {len(list(out.glob('*.png')))} in {out}")


if __name__ == "__main__":
    main()
