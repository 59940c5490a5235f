"""Public torch libraries' own tests, without and with ``--gpu-leak``: same outcomes, what is flagged, what it costs.

    python benchmarks/public_suites.py --out results [--repeats 3] [--only gpytorch] [--python python3.11]

Makes one virtual environment in the cache folder, with torch pinned, and downloads each library's sdist from the
package index for its tests. Each suite then runs by turns without and with the plugin, and once more with the plugin
and a report, which says what was flagged. Compared are the outcome of every phase of every test, and the state of the
random generators after it; written are a table, a Markdown fragment and a JSON file. The exit status is 1 where an
outcome differs. Nothing here needs a GPU; the index must be in reach the first time.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

CHECKOUT = Path(__file__).resolve().parent.parent
PROBE_FOLDER = Path(__file__).resolve().with_suffix("")
TORCH = "torch==2.13.0"
RUNS = ("without", "with")
JUDGED = "with a report and"


@dataclasses.dataclass(frozen=True)
class Suite:
    """The part of a library's tests that is run.

    Attributes:
        name: the distribution.
        version: the release.
        tests: what pytest is given, relative to the unpacked sdist.
        requires: what the tests import beside the library.
        without: an expression for ``-k``: what needs network, transformers, a compiler or a minute of its own.
        plugins_off: pytest plugins that another suite needs and that this one would not meet in its own environment.
        part: what tells it from another part of the same library's tests.
    """

    name: str
    version: str
    tests: tuple[str, ...]
    requires: tuple[str, ...] = ()
    without: str = ""
    plugins_off: tuple[str, ...] = ("flaky", "anyio")
    part: str = ""

    @property
    def title(self) -> str:
        return f"{self.name}-{self.part}" if self.part else self.name

    @property
    def requirement(self) -> str:
        """The release, as pip takes it."""
        return f"{self.name}=={self.version}"


SUITES = (
    Suite("linear_operator", "0.6.1", ("test",)),
    Suite("gpytorch", "1.15.2", ("test", "--ignore=test/examples")),
    # Without the tests that leak: what the check costs where nothing does but make cycles, in nearly every test.
    Suite("gpytorch", "1.15.2", ("test", "--ignore=test/examples"), without="not fantasy", part="clean"),
    Suite(
        "skorch",
        "1.4.0",
        ("skorch/tests", "--ignore=skorch/tests/llm", "--ignore=skorch/tests/test_hf.py"),
        requires=("flaky", "pandas", "gpytorch==1.15.2"),
        plugins_off=("anyio",),
        # The test with LBFGS draws its seed from the clock.
        without="not Multiprocessing and not Compile and not compile and not grid_search and not lbfgs",
    ),
    Suite(
        "accelerate",
        "1.15.0",
        (
            *(f"tests/test_{name}.py" for name in ("accelerator", "data_loader", "dataclasses", "grad_sync", "hooks")),
            *(f"tests/test_{name}.py" for name in ("kwargs_handlers", "logging", "modeling_utils", "offload")),
            *(f"tests/test_{name}.py" for name in ("optimizer", "scheduler", "state_checkpointing", "utils")),
        ),
        requires=("parameterized",),
        without="not compile and not convert_to_fp32 and not accelerator_none",
    ),
    # torch.compile takes a minute without its cache; TorchScript's tracer keeps 16 constants of test_torch_layer for good.
    Suite("einops", "0.8.2", ("einops/tests",), without="not compile and not torch_layer"),
    Suite("zuko", "1.6.0", ("tests",)),
    Suite("nflows", "0.14", ("tests",), requires=("torchtestcase",)),
    # Nearly each of its tests that pass calls `backward(create_graph=True)` and leaks.
    Suite("torch-optimizer", "0.3.0", ("tests",)),
    Suite("opt_einsum", "3.4.0", ("opt_einsum/tests",)),
    Suite("entmax", "1.0", ("entmax",)),
    Suite("autoray", "0.11.0", ("tests",), requires=("scipy", "sparse")),
    # On NumPy: what the plugin costs where no test has a tensor.
    Suite("tensorly", "0.10.0", ("tensorly/tenalg", "tensorly/tests", "tensorly/metrics")),
    Suite(
        "xarray",
        "2026.9.0",
        ("xarray/tests/test_variable.py", "xarray/tests/test_merge.py"),
        requires=("pytz", "sparse"),
    ),
    Suite(
        "pytorch-ignite",
        "0.5.5",
        (
            *(f"tests/ignite/engine/test_{name}.py" for name in ("event_handlers", "engine")),
            "tests/ignite/handlers/test_ema_handler.py",
        ),
    ),
)


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of a suite.

    Attributes:
        wall_s: seconds from start to end of the process.
        cpu_s: seconds of processor time, children included; None where the platform does not tell.
        status: pytest's exit status.
        phases: by test, when, outcome and message of each report.
        random: by test, a digest of the random generators after it.
        report: the plugin's JSON report; None for a run without one.
    """

    wall_s: float
    cpu_s: float | None
    status: int
    phases: dict[str, list[list[str]]]
    random: dict[str, str]
    report: dict[str, Any] | None


class Workshop:
    """The virtual environment and the unpacked sdists.

    Args:
        cache: folder for both.
        python: interpreter of the environment.
        threads: of torch's own, in each run.
        timeout_s: seconds after which a run is given up.
    """

    def __init__(self, cache: Path, python: str, threads: int, timeout_s: float) -> None:
        self._cache = cache
        self._source_python = python
        self._threads = threads
        self._timeout_s = timeout_s
        self._venv = cache / "venv"
        self._constraints = cache / "constraints.txt"

    @property
    def python(self) -> Path:
        """The environment's interpreter."""
        return self._venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")

    def prepare(self, suites: Sequence[Suite]) -> None:
        """Make the environment: torch first, then what must leave it as it is, the plugin last and anew."""
        self._cache.mkdir(parents=True, exist_ok=True)
        if not self.python.exists():
            call([self._source_python, "-m", "venv", str(self._venv)])
        self._constraints.write_text(TORCH + "\n", encoding="utf-8")
        self._pip("install", TORCH, "numpy", "pytest")
        for suite in suites:
            self._pip("install", "-c", str(self._constraints), suite.requirement, *suite.requires)
        self._pip("install", "-c", str(self._constraints), str(CHECKOUT))  # what it needs, as a user gets it
        self._pip("install", "--no-deps", "--force-reinstall", str(CHECKOUT))

    def unpack(self, suite: Suite) -> Path:
        """Download the sdist, once, and unpack it afresh: the tests may have left files.

        Raises:
            SystemExit: the index has no sdist of it.
        """
        folder = self._cache / "sdists" / suite.name
        if not list(folder.glob("*.tar.gz")):
            self._pip("download", "--no-deps", "--no-binary", suite.name, "-d", str(folder), suite.requirement)
        archives = list(folder.glob(f"*{suite.version}.tar.gz"))
        if not archives:
            raise SystemExit(f"{suite.requirement}: no sdist in {folder}")
        target = self._cache / "src" / suite.name
        shutil.rmtree(target, ignore_errors=True)
        with tarfile.open(archives[0]) as archive:
            if hasattr(tarfile, "data_filter"):
                archive.extractall(target, filter="data")
            else:
                archive.extractall(target)
        return next(path for path in target.iterdir() if path.is_dir())

    def collect(self, suite: Suite, folder: Path) -> None:
        """Collect once, so that no run pays for compiling what it imports."""
        self._pytest(suite, folder, ["--collect-only", "-q"], self._cache / "collect.log", None)

    def run(self, suite: Suite, folder: Path, mode: str, log: Path) -> Run:
        """Run the suite once, without or with the plugin, or with a report.

        Raises:
            SystemExit: it did not come to its end.
        """
        outcomes, found = log.with_suffix(".outcomes.json"), log.with_suffix(".leaks.json")
        for path in (outcomes, found):
            path.unlink(missing_ok=True)
        arguments = ["-q", "--no-gpu-leak" if mode == "without" else "--gpu-leak"]
        if mode == JUDGED:
            arguments.append(f"--gpu-leak-report={found}")
        began, cpu_before = time.perf_counter(), children_cpu_s()
        status = self._pytest(suite, folder, arguments, log, outcomes)
        wall, cpu_after = time.perf_counter() - began, children_cpu_s()
        if status not in (0, 1) or not outcomes.exists():
            raise SystemExit(f"{suite.requirement} {mode} --gpu-leak: pytest's status is {status}, see {log}")
        probe = json.loads(outcomes.read_text(encoding="utf-8"))
        return Run(
            wall_s=wall,
            cpu_s=None if cpu_before is None or cpu_after is None else cpu_after - cpu_before,
            status=status,
            phases=probe["phases"],
            random=probe["random"],
            report=json.loads(found.read_text(encoding="utf-8")) if mode == JUDGED else None,
        )

    def versions(self) -> dict[str, str]:
        """All that is installed."""
        lines = call([str(self.python), "-m", "pip", "list", "--format=json", "--disable-pip-version-check"])
        return {entry["name"]: entry["version"] for entry in json.loads(lines)}

    def _pytest(self, suite: Suite, folder: Path, arguments: list[str], log: Path, outcomes: Path | None) -> int:
        config = self._cache / "pytest.ini"
        config.write_text("[pytest]\n", encoding="utf-8")
        command = [str(self.python), "-m", "pytest", "-c", str(config), f"--rootdir={folder}", *suite.tests]
        command += ["-p", "no:cacheprovider", "-p", "no:randomly", "-p", "outcome_probe", *arguments]
        command += [f"--basetemp={self._cache / 'basetemp'}"]
        for plugin in suite.plugins_off:
            command += ["-p", f"no:{plugin}"]
        if suite.without:
            command += ["-k", suite.without]
        environment = {
            **os.environ,
            "PYTHONPATH": str(PROBE_FOLDER),
            "PYTHONHASHSEED": "0",
            "PYTEST_ADDOPTS": "",
            "OMP_NUM_THREADS": str(self._threads),
            "HF_HUB_OFFLINE": "1",
        }
        if outcomes is not None:
            environment["OUTCOME_PROBE_FILE"] = str(outcomes)
        with log.open("w", encoding="utf-8") as stream:
            try:
                return subprocess.run(
                    command,
                    cwd=folder,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    timeout=self._timeout_s,
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                return 124

    def _pip(self, *arguments: str) -> None:
        call([str(self.python), "-m", "pip", "-q", "--disable-pip-version-check", *arguments])


def call(command: list[str]) -> str:
    """Run a command. Raises SystemExit with what it said where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def children_cpu_s() -> float | None:
    """Processor time of the processes waited for so far."""
    try:
        import resource
    except ImportError:
        return None
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def differing_outcomes(one: Run, other: Run) -> dict[str, tuple[Any, Any]]:
    """Tests whose phases went otherwise, with both sides. Messages are shown and not compared: they name addresses."""
    differing = {}
    for nodeid in sorted({*one.phases, *other.phases}):
        sides = (one.phases.get(nodeid), other.phases.get(nodeid))
        first, second = (None if side is None else [phase[:2] for phase in side] for side in sides)
        if first != second:
            differing[nodeid] = sides
    return differing


def first_random_difference(one: Run, other: Run) -> str | None:
    """The first test after which the random generators stand elsewhere; None where all runs draw the same numbers."""
    return next((nodeid for nodeid, state in one.random.items() if other.random.get(nodeid) != state), None)


def findings_of(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Everything that was flagged, once for each test or fixture, kind and holder."""
    merged: dict[tuple[str, str, str], dict[str, Any]] = {}
    for where, verdict, finding in flagged(report):
        holder = finding["holder"] or {}
        key = (where, finding["kind"], holder.get("root") or "")
        entry = {
            "where": where,
            "verdict": verdict,
            "kind": finding["kind"],
            "failed": finding["failed"],
            "count": finding["count"],
            "bytes": finding["bytes"],
            "bytes_per_run": finding["bytes_per_run"],
            "holder_kind": holder.get("kind"),
            "holder": holder.get("text"),
            "holder_file": holder.get("file"),
            "holder_line": holder.get("line"),
            "path": holder.get("path"),
            "created": next((one["created"] for one in finding["tensors"] if one["created"]), None),
        }
        merged.setdefault(key, entry)
    return list(merged.values())


def flagged(report: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Each finding of a report, with the test or fixture it belongs to and the verdict."""
    for test in report["tests"]:
        for finding in test["findings"]:
            yield test["nodeid"], test["verdict"], finding
    for fixture in report["fixtures"]:
        for finding in fixture["findings"]:
            where = f"fixture {fixture['name']} of {fixture['baseid']}"
            yield where, "leaked" if finding["failed"] else "noted", finding


def summarise(suite: Suite, pairs: Sequence[dict[str, Run]], judged: Run) -> dict[str, Any]:
    """The figures of one suite, ready for JSON.

    Args:
        suite: which.
        pairs: of each repeat, the run without and the run with the plugin.
        judged: the run with a report.
    """
    plain, watched = [pair["without"] for pair in pairs], [pair["with"] for pair in pairs]
    outcomes = Counter(outcome_of(phases) for phases in plain[0].phases.values())
    report: dict[str, Any] = judged.report or {"tests": [], "fixtures": []}
    own = [test["overhead_s"] for test in report["tests"] if not test["findings"]]
    differing: dict[str, Any] = differing_outcomes(plain[0], judged)
    for pair in pairs:
        differing.update(differing_outcomes(pair["without"], pair["with"]))
    by_itself = sorted({nodeid for run in plain[1:] for nodeid in differing_outcomes(plain[0], run)})
    cpu = [run.cpu_s for run in (*plain, *watched)]
    return {
        "suite": suite.title,
        "version": suite.version,
        "tests": len(plain[0].phases),
        "outcomes": dict(outcomes),
        "verdicts": dict(Counter(test["verdict"] for test in report["tests"])),
        "differing": differing,
        "differing_without_plugin": by_itself,
        "random_differs_after": next(filter(None, (first_random_difference(*pair.values()) for pair in pairs)), None),
        "random_differs_without_plugin": next(
            filter(None, (first_random_difference(plain[0], run) for run in plain[1:])), None
        ),
        "findings": findings_of(report),
        "wall_s": {"without": [run.wall_s for run in plain], "with": [run.wall_s for run in watched]},
        "wall_ratio": statistics.median(pair["with"].wall_s / pair["without"].wall_s for pair in pairs),
        # What a machine does beside the run only adds to it.
        "wall_ratio_of_quickest": min(run.wall_s for run in watched) / min(run.wall_s for run in plain),
        "cpu_ratio": None
        if None in cpu
        else statistics.median((pair["with"].cpu_s or 0.0) / (pair["without"].cpu_s or 1.0) for pair in pairs),
        "wall_s_with_report": judged.wall_s,
        "own_us_median": statistics.median(own) * 1e6,
        "own_us_mean": statistics.fmean(own) * 1e6,
        "own_s_of_flagged": sum(test["overhead_s"] for test in report["tests"] if test["findings"]),
    }


def outcome_of(phases: list[list[str]]) -> str:
    """One word for a test."""
    words = [outcome for _, outcome, _ in phases]
    return next((word for word in ("failed", "xfail-skipped", "xfail-passed", "skipped") if word in words), "passed")


def render(summaries: Sequence[dict[str, Any]], header: str) -> str:
    """The Markdown fragment."""
    lines = [
        header,
        "",
        "| suite | version | tests | other outcomes | leaked | noted | whole run | of the quickest | CPU | own time a clean test |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for one in summaries:
        found = one["findings"]
        cpu = "" if one["cpu_ratio"] is None else f"{one['cpu_ratio']:.3f}"
        lines.append(
            f"| {one['suite']} | {one['version']} | {one['tests']} | {len(one['differing'])} "
            f"| {len({f['where'] for f in found if f['failed']})} "
            f"| {len({f['where'] for f in found if not f['failed']})} "
            f"| {one['wall_ratio']:.3f} | {one['wall_ratio_of_quickest']:.3f} | {cpu} | {one['own_us_median']:.0f} us (mean {one['own_us_mean']:.0f}) |"
        )
    lines += ["", "| suite | test | verdict | kind | tensors | bytes | held by |"]
    lines.append("| --- | --- | --- | --- | --- | --- | --- |")
    for one in summaries:
        for f in one["findings"]:
            cells = [one["suite"], f["where"], f["verdict"], f["kind"], f["count"], f["bytes"]]
            cells += [f"{f['holder'] or '?'} ({f['holder_kind']})"]
            lines.append("| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |")
    for one in summaries:
        lines += ["", f"{one['suite']}: {one['outcomes']}; {one['verdicts']}"]
        for name in ("random_differs_after", "random_differs_without_plugin", "differing_without_plugin"):
            if one[name]:
                lines.append(f"- {name}: {one[name]}")
        for nodeid, (without, watched) in one["differing"].items():
            lines.append(f"- differs: {nodeid}: {without} -> {watched}")
    return "\n".join(lines) + "\n"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default_cache = Path(tempfile.gettempdir()) / "gpuleak-public-suites"
    parser.add_argument("--out", type=Path, required=True, help="folder for the Markdown fragment, the JSON and logs")
    parser.add_argument("--cache", type=Path, default=default_cache, help="folder for venv and sdists (%(default)s)")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the environment (this one)")
    parser.add_argument("--repeats", type=int, default=3, help="runs without and with the plugin, each (%(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads in each run (%(default)s)")
    parser.add_argument("--timeout", type=float, default=900, help="seconds for a run (%(default)s)")
    names = [suite.title for suite in SUITES]
    parser.add_argument("--only", action="append", choices=names, help="this suite; may be given again (all)")
    options = parser.parse_args(arguments)
    if options.repeats < 1:
        parser.error("--repeats: at least 1 is needed")
    return options


def main() -> None:
    """Prepare, run, compare, write."""
    options = parse()
    out, cache = options.out.resolve(), options.cache.resolve()
    out.mkdir(parents=True, exist_ok=True)
    suites = [suite for suite in SUITES if not options.only or suite.title in options.only]
    workshop = Workshop(cache, options.python, options.threads, options.timeout)
    print("preparing the environment", flush=True)
    workshop.prepare(suites)
    versions = workshop.versions()
    header = (
        f"{platform.machine()}, {os.cpu_count()} CPUs; torch {versions.get('torch')}, pytest {versions.get('pytest')}; "
        f"{options.repeats} pair{'s' if options.repeats > 1 else ''} of runs, {options.threads} thread(s), medians"
    )
    summaries = []
    for suite in suites:
        folder = workshop.unpack(suite)
        workshop.collect(suite, folder)
        pairs: list[dict[str, Run]] = []
        for repeat in range(options.repeats):
            pair = {}
            for mode in RUNS if repeat % 2 == 0 else RUNS[::-1]:  # whoever runs first: each by turns
                print(f"{suite.requirement}, {mode} --gpu-leak, {repeat + 1} of {options.repeats}", flush=True)
                pair[mode] = workshop.run(suite, folder, mode, out / f"{suite.title}-{repeat}-{mode}.log")
                print(f"  {pair[mode].wall_s:.1f} s", flush=True)
            pairs.append({mode: pair[mode] for mode in RUNS})
        print(f"{suite.requirement}, {JUDGED} --gpu-leak", flush=True)
        judged = workshop.run(suite, folder, JUDGED, out / f"{suite.title}-report.log")
        print(f"  {judged.wall_s:.1f} s", flush=True)
        summaries.append(summarise(suite, pairs, judged))
        # Written after each: a later suite may fail to run.
        record = {"header": header, "versions": versions, "suites": summaries}
        (out / "public-suites.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        (out / "public-suites.md").write_text(render(summaries, header), encoding="utf-8")
    print(render(summaries, header))
    if any(one["differing"] for one in summaries):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
