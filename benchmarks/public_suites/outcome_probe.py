"""A pytest plugin that writes what each test did, and the state of the random generators after it, to a JSON file.

Loaded with ``-p outcome_probe`` in the runs with and without ``--gpu-leak`` alike. A teardown that failed by a leak
alone is written as passed: that verdict is compared by itself, from the plugin's own report.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

SEED = 1234
LEAK_TEXT = "GPU LEAK\n"
MESSAGE_LENGTH = 200

_phases: dict[str, list[list[str]]] = {}
_seeded: set[str] = set()
_random_states: dict[str, str] = {}


def pytest_collection_finish() -> None:
    """Seed what the tests draw from, once the modules are imported."""
    random.seed(SEED)
    _seed_imported()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note one phase, or one sub-test."""
    outcome = "xfail-" + report.outcome if hasattr(report, "wasxfail") else str(report.outcome)
    message = ""
    if report.failed:
        text = report.longreprtext
        if report.when == "teardown" and text.startswith(LEAK_TEXT):
            outcome = "passed"
        else:
            crash = getattr(report.longrepr, "reprcrash", None)
            message = str(crash.message if crash is not None else text)[:MESSAGE_LENGTH]
    _phases.setdefault(report.nodeid, []).append([str(report.when), outcome, message])


def pytest_runtest_logfinish(nodeid: str) -> None:
    """Note what the next test would draw, and seed what this one has imported."""
    _seed_imported()
    _random_states[nodeid] = _digest()


def pytest_sessionfinish() -> None:
    """Write the file that the environment names."""
    path = os.environ.get("OUTCOME_PROBE_FILE")
    if path:
        Path(path).write_text(json.dumps({"phases": _phases, "random": _random_states}), encoding="utf-8")


def _seed_imported() -> None:
    """Seed each library once: one that a test imports has a seed of its own in every run."""
    modules: dict[str, Any] = dict(sys.modules)
    for name in {"numpy", "torch"}.intersection(modules) - _seeded:
        _seeded.add(name)
        seed = modules[name].random.seed if name == "numpy" else modules[name].manual_seed
        seed(SEED)


def _digest() -> str:
    digest = hashlib.sha1(repr(random.getstate()).encode(), usedforsecurity=False)
    modules: dict[str, Any] = dict(sys.modules)
    if "numpy" in modules:
        digest.update(repr(modules["numpy"].random.get_state(legacy=True)[1:3]).encode())
        digest.update(modules["numpy"].random.get_state(legacy=True)[1].tobytes())
    if "torch" in modules:
        digest.update(bytes(modules["torch"].get_rng_state().numpy()))
    return digest.hexdigest()[:12]
