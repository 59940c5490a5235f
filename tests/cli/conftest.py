"""The command `gpuleak` called in this process, in an empty folder, and reports of made-up records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from pytest_gpuleak.cli import main
from pytest_gpuleak.reports.formats import write_report
from tests.reports.conftest import Make

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from click.testing import Result

    from pytest_gpuleak.model.records import RunReport

    Call = Callable[..., Result]
    Save = Callable[[str, RunReport], Path]


@pytest.fixture(autouse=True)
def columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of one length, whatever terminal the tests run in, and no colours asked for or refused."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def call(folder: Path) -> Call:
    """Call the command with arguments; the result has its exit code, stdout and stderr."""

    def one(*arguments: str, **options: object) -> Result:
        found = CliRunner().invoke(main, list(arguments), **options)  # type: ignore[arg-type]
        if found.exception is not None and not isinstance(found.exception, SystemExit):
            raise found.exception
        return found

    return one


@pytest.fixture
def save(folder: Path) -> Save:
    """Write a report as the plugin does, under a name in the folder."""

    def one(name: str, report: RunReport) -> Path:
        path = folder / name
        write_report(report, path)
        return path

    return one


@pytest.fixture(scope="session")
def make() -> type[Make]:
    return Make
