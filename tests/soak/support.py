"""What stands in a random suite beside its tests: the arrays, what is imported, and the plugin that notes what happens."""

from __future__ import annotations

from tests.planted.kind import HELPERS, STANDARD

IMPORTS = f"""\
{STANDARD}
import asyncio, gc, logging, multiprocessing, os, random, signal, subprocess, sys, threading, unittest, warnings
from soak_support import HERE, make, say

try:
    import hypothesis, hypothesis.strategies
except ImportError:
    pass
{HELPERS}"""

SUPPORT = """\
import os

HERE = os.path.dirname(os.path.abspath(__file__))

if TORCH:
    import torch

    def make(size):
        return torch.zeros(size, dtype=torch.uint8)
else:
    from tests.support.standin import Buffer as make


def say(*words):
    print("soak", *words)
"""

CONFTEST = """\
import random, sys
import pytest
from soak_support import make

random.seed(1)
if "torch" in sys.modules:
    sys.modules["torch"].manual_seed(1)


@pytest.hookimpl(optionalhook=True)
def pytest_gpuleak_arrays(config):
    from tests.support.standin import StandInArrays

    return [StandInArrays()]


"""

RECORDER = """\
import json, os
import pytest

RECORDS = os.open(os.environ["SOAK_RECORDS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
del os.environ["SOAK_RECORDS"]


def note(**record):
    os.write(RECORDS, json.dumps(record).encode() + b"\\n")


def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(), "soak-recorder")


class Recorder:
    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report):
        found = getattr(report, "gpu_leak", None)
        note(
            kind="report",
            nodeid=report.nodeid,
            when=report.when,
            outcome=report.outcome,
            xfail=getattr(report, "wasxfail", None),
            leaked=isinstance(found, dict) and found["verdict"] == "leaked" and report.outcome in ("failed", "rerun"),
            sections=report.sections,
            text=str(report.longrepr) if report.longrepr else "",
            properties=[[name, str(value)] for name, value in report.user_properties if not name.startswith("gpu_leak")],
            worker=getattr(report, "worker_id", None),
            type=type(report).__name__,
        )

    def pytest_runtest_logstart(self, nodeid):
        note(kind="start", nodeid=nodeid)

    def pytest_runtest_logfinish(self, nodeid):
        note(kind="finish", nodeid=nodeid)

    def pytest_fixture_post_finalizer(self, fixturedef):
        if fixturedef.cached_result is not None and fixturedef.cached_result[2] is None:
            note(kind="finalised", name=fixturedef.argname)

    def pytest_warning_recorded(self, warning_message, when, nodeid):
        note(kind="warning", nodeid=nodeid, when=when, text=f"{warning_message.category.__name__}: {warning_message.message}")

    def pytest_collectreport(self, report):
        if report.failed:
            note(kind="collect", nodeid=report.nodeid)

    def pytest_deselected(self, items):
        note(kind="deselected", nodeids=[item.nodeid for item in items])

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session, exitstatus):
        note(kind="end", testsfailed=session.testsfailed, testscollected=session.testscollected)
"""
"""Notes what pytest's hooks say, one JSON object a line, in the file that ``SOAK_RECORDS`` names."""
