"""Random suites: drawn from a seed, written into a folder, with the verdict that each of their tests must get."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import textwrap
from random import Random
from typing import TYPE_CHECKING

from tests.soak.snippets import ENDINGS, HOLDERS, MARKS, NOISES, PLACES, Holder, Place
from tests.soak.support import CONFTEST, IMPORTS, SUPPORT
from tests.soak.wholes import WHOLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

SMALL, LARGE = 4096, 3 * 2**20
"""Bytes of an array below and above what fails where it does not grow."""

_NUMBER = re.compile(r"(?<![A-Za-z])N(?![A-Za-z])|(?<=Test)N(?![A-Za-z])|(?<=soak)N\b")
_ASYNC = ("async", "asyncio", "IsolatedAsyncioTestCase")
_EXITS = ("raise KeyboardInterrupt", "raise SystemExit(3)", "pytest.exit('soak')", "raise ZeroDivisionError")

JSON_REPORT = "--gpu-leak-report=gpuleak.json"


@dataclasses.dataclass(frozen=True)
class Piece:
    """Tests and fixtures that can be left out of a suite together.

    Attributes:
        name: the snippets it is made of.
        file: the number of the test file that it stands in.
        source: its text.
        left: by test (id below the file) what it leaves, see `verdicts_of`.
        fixtures: by wider fixture what it leaves.
        size: bytes of its arrays.
        conftest: its part of the conftest.py.
    """

    name: str
    file: int
    source: str
    left: dict[str, str]
    fixtures: dict[str, str]
    size: int
    conftest: str = ""


@dataclasses.dataclass(frozen=True)
class Suite:
    """A suite and how it is run.

    Attributes:
        seed: reproduces it.
        pieces: what its files consist of, in order.
        options: pytest's options, of both runs.
        again: options of a second run in the same folder (``--lf``); None: there is none.
        plugin_options: options of the run with the plugin.
        ini: lines of pytest.ini.
        plugins: modules that are loaded by ``-p``.
        torch: whether the arrays are torch's.
        traits: what the comparison must know: ``xdist``, ``stops``, ``uncaptured``, ``order``.
    """

    seed: str
    pieces: tuple[Piece, ...]
    options: tuple[str, ...]
    again: tuple[str, ...] | None
    plugin_options: tuple[str, ...]
    ini: tuple[str, ...]
    plugins: tuple[str, ...]
    torch: bool
    traits: frozenset[str]

    @property
    def reports(self) -> bool:
        """Whether the plugin writes its JSON report; else it looks at what nobody reads as briefly as by default."""
        return JSON_REPORT in self.plugin_options

    @property
    def hides(self) -> bool:
        """Whether arrays are hidden from the check: a scan sees nothing of what user code has frozen, until it is thawed."""
        scans = "--gpu-leak-scan=scan" in self.plugin_options
        return scans and any("freeze for good" in piece.name for piece in self.pieces)

    def expected(self) -> dict[str, frozenset[str]]:
        """The verdicts that each test may get, by nodeid."""
        found = {}
        for piece in self.pieces:
            for test, was_left in piece.left.items():
                left = "any" if self.hides and was_left != "unchecked" else was_left
                found[_nodeid(piece.file, test)] = self.verdicts_of(left, piece.size)
        return found

    def expected_fixtures(self) -> dict[str, bool]:
        """Whether what is left by a wider fixture fails, by its name; those that leave nothing are not named."""
        return {
            name: left == "growing" or "leaked" in self.verdicts_of(left, piece.size)
            for piece in self.pieces
            for name, left in piece.fixtures.items()
        }

    def verdicts_of(self, left: str, size: int) -> frozenset[str]:
        """Tell the verdicts that a test may get.

        Args:
            left: ``growing``, ``retained``, ``cycle``, ``nothing``, ``unsure`` (at most garbage), ``busy`` (the same, while
                a thread makes garbage), ``shared`` (growing in
                a fixture that may go at the same time), ``unchecked``, ``allowed``, ``later`` (retained, after another
                test has filled the place) or ``any``.
            size: bytes of an array.
        """
        options = self.plugin_options
        strict = "--gpu-leak-confirm=0" in options
        garbage = {"clean", "leaked"} if "--gpu-leak-cycles=fail" in options else {"clean", "noted"}
        failing_residue = strict or size >= 2**20
        verdicts: dict[str, Iterable[str]] = {
            "growing": {"leaked"},
            "retained": {"leaked"} if failing_residue else {"noted"},
            "later": {"clean", "noted", *(("leaked",) if failing_residue else ())},
            "cycle": garbage,
            "nothing": {"clean"},
            "unsure": garbage,
            "busy": {*garbage, "noted"},
            "shared": {"leaked"} if not self.traits & {"xdist", "order", "stops"} else {"leaked", "clean"},
            "unchecked": {"unchecked"},
            "allowed": {"allowed"},
            "any": {"clean", "noted", "leaked", "unchecked", "allowed"},
        }
        return frozenset(verdicts[left])

    def write(self, folder: Path) -> None:
        """Write the suite's files into a folder that exists."""
        (folder / "soak_support.py").write_text(SUPPORT.replace("TORCH", str(self.torch)))
        conftest = "".join(piece.conftest for piece in self.pieces)
        (folder / "conftest.py").write_text(CONFTEST + conftest)
        (folder / "pytest.ini").write_text("\n".join(("[pytest]", *self.ini)) + "\n")
        for number in sorted({piece.file for piece in self.pieces}):
            parts = [f"# {piece.name}\n{piece.source}" for piece in self.pieces if piece.file == number]
            (folder / _file(number)).write_text("\n\n".join((IMPORTS, *parts)))

    def without(self, pieces: Sequence[Piece]) -> Suite:
        """Return the suite without some of its pieces."""
        gone = set(map(id, pieces))
        return dataclasses.replace(self, pieces=tuple(piece for piece in self.pieces if id(piece) not in gone))


def draw_suite(seed: str) -> Suite:
    """Draw the suite of a seed. Which plugins are installed matters too: a piece that needs one that is not is left out."""
    random = Random(seed)
    torch = _installed("torch") and random.random() < 0.08
    options, again, ini, traits = _draw_run(random)
    files = random.choice((1, 1, 2, 3))
    pieces: list[Piece] = []
    last: list[Piece] = []
    for number in range(random.randint(3, 14)):
        file = random.randrange(files)
        piece = (
            _draw_whole(random, number, file, traits) if random.random() < 0.3 else _draw_crossed(random, number, file)
        )
        if piece is None:
            continue
        if piece.name in WHOLES and WHOLES[piece.name].last:
            if not last and random.random() < 0.3:
                last.append(dataclasses.replace(piece, file=files))
        else:
            pieces.append(piece)
    state = [_whole("state", 100 + file, file, SMALL, random) for file in range(files)]
    pieces += [piece for piece in state if piece is not None]
    plugins = [name for name in ("xdist.plugin", "pytest_timeout", "pytest_rerunfailures") if _installed(name)]
    optional = {"pytest_asyncio": "pytest_asyncio.plugin", "pytest_mock": "pytest_mock"}
    plugins += [plugin for module, plugin in optional.items() if _installed(module)]
    if any("hypothesis" in piece.name for piece in pieces):
        plugins.append("_hypothesis_pytestplugin")
    if "order" in traits:
        plugins.append("pytest_randomly")
    return Suite(
        seed,
        (*pieces, *last),
        options,
        again,
        _draw_plugin_options(random),
        ini,
        tuple(plugins),
        torch,
        traits,
    )


def _draw_run(random: Random) -> tuple[tuple[str, ...], tuple[str, ...] | None, tuple[str, ...], frozenset[str]]:
    """Draw how pytest is run: options, those of a second run, the ini file, traits."""
    options: list[str] = ["--basetemp=basetemp"]
    ini: list[str] = []
    traits: set[str] = set()
    again: tuple[str, ...] | None = None
    kind = random.random()
    if kind < 0.10 and _installed("xdist"):
        options += ["-n2", "--dist=" + random.choice(("load", "loadfile", "loadscope", "worksteal"))]
        traits.add("xdist")
    elif kind < 0.16:
        options.append(random.choice(("-x", "--maxfail=2", "--stepwise")))
        traits.add("stops")
    elif kind < 0.22:
        again = (random.choice(("--lf", "--ff", "--nf", "--sw")),)
    elif kind < 0.28 and _installed("pytest_randomly"):
        options.append(f"-prandomly_seed={random.randrange(1000)}".replace("-prandomly_seed", "--randomly-seed"))
        traits.add("order")
    elif kind < 0.34 and _installed("pytest_rerunfailures"):
        options.append("--reruns=1")
        traits.add("reruns")
    elif kind < 0.37:
        options.append(random.choice(("--setup-only", "--setup-plan", "--collect-only")))
        traits.add("not run")
    capture = random.choice(("", "", "", "--capture=sys", "--capture=tee-sys", "--capture=no"))
    if capture:
        options.append(capture)
        if capture in ("--capture=no", "--capture=tee-sys"):
            traits.add("uncaptured")
    several = (
        "-v", "-q", "-rA", "--tb=short", "--tb=line", "--showlocals", "--durations=3", "--junitxml=junit.xml", "--setup-show",
        "--import-mode=importlib", "-p no:cacheprovider", "-p no:logging", "-p no:warnings", "-p no:unraisableexception",
        "-p no:threadexception", "-p no:faulthandler", "-p no:stepwise", "-p no:tmpdir", "--doctest-modules", "-W error",
        "--strict-markers", "--log-level=INFO", "--log-cli-level=INFO", "--log-file=soak.log", "--cache-clear",
        "--timeout=100", "-p no:terminal",
    )  # fmt: skip
    for option in random.sample(several, random.choice((0, 1, 2, 3, 4))):
        options += option.split() if option.startswith(("-p", "-W")) else [option]
    if random.random() < 0.2:
        ini.append("tmp_path_retention_policy = " + random.choice(("all", "failed", "none")))
    if random.random() < 0.2:
        ini.append("junit_logging = all")
    if random.random() < 0.1:
        ini.append("xfail_strict = true")
        traits.add("strict")
    marks = ("soak_mark", "asyncio", "timeout", "flaky", "allow_gpu_leak", "max_gpu_mb")
    ini.append("markers =" + "".join(f"\n    {mark}: of the soak" for mark in marks))
    return tuple(options), again, tuple(ini), frozenset(traits)


def _draw_plugin_options(random: Random) -> tuple[str, ...]:
    several = (
        "--gpu-leak-confirm=0", "--gpu-leak-confirm=2", "--gpu-leak-scan=scan", "--gpu-leak-host=off", "--gpu-leak-host=rss",
        "--gpu-leak-cycles=fail", "--gpu-leak-clean", "--gpu-leak-report=gpuleak.html", "--gpu-leak-report=gpuleak.sarif",
        "--gpu-leak-report=gpuleak.md", "--gpu-leak-max-mb=10", "--gpu-leak-host=tracemalloc",
    )  # fmt: skip
    count = random.choice((0, 0, 1, 1, 2))
    drawn = random.sample(several, count)
    single = {option.partition("=")[0]: option for option in drawn if "report" not in option}
    if random.random() < 0.35:
        return tuple(single.values())
    return (JSON_REPORT, *single.values(), *(option for option in drawn if "report" in option))


def _draw_crossed(random: Random, number: int, file: int) -> Piece | None:
    """Cross a place with a holder, noises, marks and an ending."""
    place_name = random.choice([name for name, place in PLACES.items() if not place.plugin or _installed(place.plugin)])
    place = PLACES[place_name]
    leaks = random.random() < 0.35
    holder_name = random.choice(
        [name for name, one in HOLDERS.items() if (one.stays in ("growing", "retained")) == leaks]
    )
    holder = HOLDERS[holder_name]
    noises = random.sample(_noises_for(place, place_name), random.choice((0, 1, 1, 2, 3)))
    before = random.randint(0, len(noises))
    ending = random.choice(list(ENDINGS)) if place.flow and random.random() < 0.15 else ""
    mark = random.choice(list(MARKS)) if not ending and "@MARKS" in place.source and random.random() < 0.2 else ""
    line, must_fail, meaning = MARKS[mark] if mark else ("", False, "passes")
    if must_fail and not place.flow:
        line, must_fail, meaning, mark = "", False, "passes", ""
    statements = [NOISES[name].body for name in noises[:before]]
    statements += [holder.body, *(NOISES[name].body for name in noises[before:])]
    if ending:
        statements.append(ENDINGS[ending][0])
    if must_fail:
        statements.append("assert not 'soak'")
    if holder.body.startswith("global "):
        first, rest = holder.body.split("\n", 1)
        statements = [first, *(rest if one == holder.body else one for one in statements)]
    declared = dict.fromkeys(text for text in (holder.declared, *(NOISES[name].declared for name in noises)) if text)
    fixtures = dict.fromkeys(name for noise in noises for name in NOISES[noise].fixtures)
    source = _fill(place.source, "\n".join(statements), ", ".join(fixtures), line)
    size = random.choice((SMALL, LARGE))
    left = _left(place, holder, noises)
    if ending or meaning == "unchecked":
        lefts = dict.fromkeys(place.tests, "unchecked")
    elif meaning == "allowed" and left[place.tests[0]] != "nothing":
        lefts = {test: "allowed" if what == "growing" else "any" for test, what in left.items()}
    else:
        lefts = dict(left)
    lefts.update(dict.fromkeys(place.clean_tests, "unsure" if place.unsure else "nothing"))
    name = ", ".join(part for part in (place_name, holder_name, *noises, mark, ending) if part)
    text = "\n".join((*declared, source))
    return Piece(name, file, _numbered(text, number, size), _numbered_keys(lefts, number), {}, size)


def _noises_for(place: Place, name: str) -> list[str]:
    asks = "@FIXTURES" in place.source
    names = [noise for noise, one in NOISES.items() if asks or not one.fixtures]
    if name in _ASYNC:
        names.remove("asyncio")
    if name == "fixture's teardown":
        names = [noise for noise in names if not NOISES[noise].fixtures]
    if name == "thread":
        names = [noise for noise in names if noise not in ("signal", "alarm", "warn", "recwarn", "fork")]
    return names


def _left(place: Place, holder: Holder, noises: Sequence[str]) -> dict[str, str]:
    """What each of a place's tests leaves when it passes."""
    stays: str = holder.stays
    if stays == "nothing" and place.unsure:
        stays = "unsure"
    if stays == "cycle" and "freeze for good" in noises:
        stays = "any"  # garbage that is frozen stays
    left = dict.fromkeys(place.tests, stays)
    if stays == "retained":
        left.update(dict.fromkeys(place.tests[1:], "later"))
    return left


def _draw_whole(random: Random, number: int, file: int, traits: frozenset[str]) -> Piece | None:
    name = random.choice(list(WHOLES))
    if set(WHOLES[name].forbids) & traits:
        return None
    return _whole(name, number, file, random.choice((SMALL, LARGE)), random)


def _whole(name: str, number: int, file: int, size: int, random: Random) -> Piece | None:
    whole = WHOLES[name]
    if whole.plugin and not _installed(whole.plugin):
        return None
    source = whole.source.replace("'SCOPE'", repr(random.choice(("function", "module", "session"))))
    source = source.replace("ENDING", random.choice(_EXITS))
    return Piece(
        name,
        file,
        _numbered(source, number, size),
        _numbered_keys(whole.tests, number),
        _numbered_keys(whole.fixtures, number),
        size,
        _numbered(whole.conftest, number, size),
    )


def _fill(source: str, body: str, fixtures: str, marks: str) -> str:
    lines = []
    for line in source.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        if line.strip() == "@BODY":
            lines.append(textwrap.indent(body, indent))
        elif line.strip() == "@MARKS":
            lines += [indent + marks] if marks else []
        else:
            lines.append(
                line.replace(", @FIXTURES", f", {fixtures}" if fixtures else "").replace("@FIXTURES", fixtures)
            )
    return "\n".join(lines) + "\n"


def _numbered(text: str, number: int, size: int) -> str:
    return re.sub(r"\bSIZE\b", str(size), _NUMBER.sub(str(number), text))


def _numbered_keys(items: Mapping[str, str], number: int) -> dict[str, str]:
    return {_NUMBER.sub(str(number), key): value for key, value in items.items()}


def _file(number: int) -> str:
    return f"test_soak_{number}.py"


def _nodeid(file: int, test: str) -> str:
    if test.startswith("@doctest "):
        return f"{_file(file)}::test_soak_{file}.{test.removeprefix('@doctest ')}"
    return f"{_file(file)}::{test}"


def _installed(module: str) -> bool:
    return importlib.util.find_spec(module.partition(".")[0]) is not None
