"""The HTML report: one file that opens from disk, and that can be read without its script.

Its content security policy forbids requests, and allows scripts and styles by hash.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from importlib import resources
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup, escape

from pytest_gpuleak.model.codes.table import title_of
from pytest_gpuleak.model.isolation import isolated
from pytest_gpuleak.model.text import clean_text, count_of, format_bytes, format_signed
from pytest_gpuleak.reports.html.rows import TEXT_LIMIT
from pytest_gpuleak.reports.html.view import describe_run, no_data
from pytest_gpuleak.reports.source_places import describe_unshown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pytest_gpuleak.model.records import RunReport
    from pytest_gpuleak.reports.html.rows import Row


def encode_report(report: RunReport) -> str:
    """Render a report as one HTML document without outside references."""
    run = describe_run(report)
    styles = [_asset("uplot/uPlot.min.css") + "\n" + _asset("report.css")]
    head_script = _asset("head.js")
    scripts = [_asset("uplot/uPlot.iife.min.js"), _asset("report.js")]
    template = _environment().get_template("report.html")
    page: str = template.render(
        run=run,
        report=report,
        data=isolated(lambda: _safe_json(run["data"]), lambda _: _safe_json(no_data())),
        styles=list(map(Markup, styles)),
        head_script=Markup(head_script),
        scripts=list(map(Markup, scripts)),
        content_security_policy=content_security_policy([head_script, *scripts], styles),
    )
    return page


def content_security_policy(scripts: list[str], styles: list[str]) -> str:
    """Return the policy that allows these scripts and styles alone, and no way to turn a string into an element."""
    return "; ".join(
        [
            "default-src 'none'",
            f"script-src {' '.join(map(_source_hash, scripts))}",
            f"style-src {' '.join(map(_source_hash, styles))}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        ]
    )


def _source_hash(text: str) -> str:
    # Of the exact text of the element (https://www.w3.org/TR/CSP3/#match-element-to-source-list).
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@functools.cache
def _asset(name: str) -> str:
    """Read a file of `templates`, with the line ends that a browser hashes."""
    file = resources.files("pytest_gpuleak.reports").joinpath("templates", *name.split("/"))
    return file.read_text(encoding="utf-8").replace("\r\n", "\n")


def _safe_json(value: object) -> Any:
    """Encode JSON that cannot end a script element: HTML looks for ``</script`` and ``<!--`` in it."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _breakable(nodeid: str) -> Any:
    """Let a test's id wrap between its parts, not within a word."""
    return Markup(str(escape(clean_text(nodeid, TEXT_LIMIT))).replace("::", "::<wbr>").replace("[", "<wbr>[", 1))


def _part(name: str, caller: Callable[[], str]) -> Any:
    return isolated(
        lambda: Markup(caller()), lambda why: _UNSHOWN_PART.format(escape(f"{name} could not be shown ({why})"))
    )


def _row_part(row: Row, caller: Callable[[], str]) -> Any:
    """Render a finding's rows. A body with the same cells stands in for rows that fail."""

    def unshown(why: str) -> Any:
        fault = why if row.fault else describe_unshown(row.found.record, row.found.finding, why)
        return Markup(_UNSHOWN.format(number=row.number, state=row.found.state, fault=escape(fault)))

    return unshown(row.fault) if row.fault else isolated(lambda: Markup(caller()), unshown)


_UNSHOWN_PART = Markup('<p class="note">{}</p>')
_UNSHOWN = (
    '<tbody id="finding-{number}" data-state="{state}" data-kind="" data-device="" data-holder="" data-bytes="0"'
    ' data-order="0"><tr class="row"><th scope="row" class="c-name" align="left"><bdi>{fault}</bdi></th>'
    '<td class="c-state"><span class="state {state}">{state}</span></td><td class="c-held"></td><td class="c-kind"></td>'
    '<td class="c-device"></td><td class="c-bytes number"></td></tr><tr class="more"><td colspan="6"><details>'
    "<summary>Could not be shown</summary>The JSON report has it.</details></td></tr></tbody>"
)


def _points(points: Iterable[tuple[float, float]]) -> Any:
    return Markup(" ".join(f"{x:g},{y:g}" for x, y in points))


def _clean(value: object) -> object:
    """Remove control and bidi characters from every string that a template prints, before it is escaped."""
    return clean_text(value, TEXT_LIMIT) if isinstance(value, str) and not hasattr(value, "__html__") else value


def _template(name: str) -> str:
    """Read a template. The finding's loses its line ends, of which a browser would make a third of its nodes."""
    text = _asset(name)
    return text.replace("\n", "") if name == "finding.html" else text


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        autoescape=True,
        finalize=_clean,
        loader=jinja2.FunctionLoader(_template),
        lstrip_blocks=True,
        trim_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.globals.update(part=_part, row_part=_row_part)
    environment.filters.update(breakable=_breakable, points=_points, count_of=count_of, titled=title_of)
    environment.filters.update(size=format_bytes, signed_size=format_signed, cut=clean_text)
    return environment
