"""The README's code and that of docs/without-pytest.md runs, and prints what they say that it prints."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.session.options import OPTIONS

if TYPE_CHECKING:
    from pytest_gpuleak.session.options import Option
    from tests.support.forked import ForkServer

pytestmark = pytest.mark.slow


ROOT = Path(__file__).resolve().parents[3]
README = ROOT / "README.md"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(page: Path = README) -> list[tuple[str, str]]:
    """A page's fenced blocks, each with its language."""
    return BLOCK.findall(page.read_text(encoding="utf-8"))


def programs() -> list[tuple[str, str]]:
    """The programs that docs/without-pytest.md shows, each with the output that it shows next."""
    found = blocks(ROOT / "docs" / "without-pytest.md")
    return [
        (code, shown) for (lang, code), (then, shown) in itertools.pairwise(found) if (lang, then) == ("python", "text")
    ]


def comparable(output: str) -> str:
    """Output without what differs between two runs, or two checkouts.

    That is: times, how many tests were checked (a slow machine checks fewer whose growth is in doubt), the folder,
    which of a list's elements was shown, and where lines are broken, since that depends on the length of the folder's
    name.
    """
    text = re.sub(r"[^\s(]*/(examples/trainer|predict\.py)", r"\1", output)
    text = re.sub(r"\[\d+\](?=\.\w+\n|\s+\(|: trainer)", "[N]", text)
    text = re.sub(r"; \d+ us a clean test|; [\d.]+ ms a clean test", "; TIME a clean test", text)
    text = re.sub(r" \d+ suspects took [\d.]+ s \(re-runs [\d.]+, search [\d.]+\)", " SUSPECTS took TIME", text)
    text = re.sub(r"=* (.*) in [\d.]+s(?: \([\d:]+\))? =*", r"\1 in TIME", text)
    return re.sub(r"[\s:]+", " ", text).strip()


@pytest.mark.torch
def test_the_examples_print_what_the_readme_shows(torch_server: ForkServer | None) -> None:
    options = ["-p", "no:cacheprovider", "-p", "no:randomly", "-o", "addopts="]
    arguments = ["-mpytest", *options, "--gpu-leak", "examples"]
    # As a user would, at 80 columns and on the CPU: not what the outer pytest, and those who run it, have set for themselves.
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV_"))}
    env = {**kept, "COLUMNS": "80", "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1"}
    if torch_server is not None:
        output = torch_server.run(arguments, env, ROOT, 300).stdout
    else:
        output = subprocess.run(
            [sys.executable, *arguments], cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE, check=False
        ).stdout
    shown = next(text for lang, text in blocks() if lang == "text").partition("\ndemo: ")[0]
    assert comparable(output[output.index("examples/tests/") :]) == comparable(shown)


def test_the_demo_says_what_the_readme_shows() -> None:
    last = next(text for lang, text in blocks() if lang == "text").rstrip().splitlines()[-1]
    assert last in (ROOT / "scripts" / "check_demo.py").read_text(encoding="utf-8")


@pytest.mark.torch
@pytest.mark.parametrize("number", range(len(programs())))
def test_a_program_prints_what_the_page_shows(number: int, run_with_torch: Any) -> None:
    code, shown = programs()[number]
    assert comparable(run_with_torch(code, file="predict.py").stdout) == comparable(shown)


def test_there_are_programs_to_run() -> None:
    assert len(programs()) == 3


def test_the_markers_the_ini_and_the_hook_are_accepted(pytester: pytest.Pytester) -> None:
    pytester.makepyprojecttoml("".join(code for lang, code in blocks() if lang == "toml"))
    snippets = [code for lang, code in blocks() if lang == "python"]
    pytester.makeconftest("".join(code for code in snippets if "def pytest_" in code))
    pytester.makepyfile("".join(code for code in snippets if "def test_" in code))
    result = pytester.runpytest_subprocess("--strict-markers", "-p", "no:randomly")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(
        [
            "gpu-leak: *fails on 4.0 MiB or more left behind*",
            "gpu-leak: 1 budget was not checked: no device was used",
            "gpu-leak: 0 leaked, 3 clean*",
        ]
    )


def readme_row(option: Option) -> str:
    """The row of the README's table that an option has, without what is markup."""
    flag = f"{option.flag} / --no-gpu-leak" if option.target == "enabled" else option.flag
    cells = (f"{flag} {option.metavar}".strip(), option.default, option.help)
    return re.sub(" +", " ", f"| {' | '.join(cells)} |")


def test_the_readme_s_table_is_the_table_of_options() -> None:
    rows = re.findall(r"^\| `--.* \|$", README.read_text(encoding="utf-8"), re.MULTILINE)
    plain = [re.sub(r" \(\[.*?\]\(.*?\)\)", "", row).replace("`", "") for row in rows]
    assert plain == [readme_row(option) for option in OPTIONS]


def test_every_option_in_the_readme_is_one_of_the_command_line_s(pytester: pytest.Pytester) -> None:
    text = pytester.runpytest_subprocess("--help").stdout.str()
    options = set(re.findall(r"--(?:no-)?gpu-leak[\w-]*", text))
    assert options == set(re.findall(r"--(?:no-)?gpu-leak[\w-]*", README.read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    "page", ["README.md", "CHANGELOG.md", *(f"docs/{path.name}" for path in ROOT.glob("docs/*.md"))]
)
def test_links_lead_somewhere(page: str) -> None:
    links = re.findall(r"\]\(([^)#]+)", (ROOT / page).read_text(encoding="utf-8"))
    local = [link for link in links if not link.startswith("https://")]
    assert [link for link in local if not (ROOT / page).parent.joinpath(link).exists()] == []
