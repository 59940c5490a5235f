"""The HTML report as a reader meets it, in a real browser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuleak.model.findings import Holder, PathStep
from pytest_gpuleak.reports.formats import write_report
from tests.reports.test_html import HOSTILE, full_report

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pytest_gpuleak.model.records import RunReport
    from tests.acceptance.browser.conftest import Opener
    from tests.reports.conftest import Make

pytestmark = pytest.mark.slow

MIB = 1024**2
STRICT = "sandbox; default-src 'none'; img-src 'self'; style-src 'self'"

CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const parse = (colour) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const luminance = (rgb) => {
    const [r, g, b] = rgb.map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const backdrop = (node) => {
    for (; node; node = node.parentElement) {
      const colour = parse(getComputedStyle(node).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return [255, 255, 255, 255];
  };
  const poor = [];
  let seen = 0;
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
    if (!own || !node.checkVisibility() || node.closest("svg, script, .away, .skip")) continue;
    seen += 1;
    const [one, other] = [parse(getComputedStyle(node).color), backdrop(node)].map((c) => luminance(c.slice(0, 3)));
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (ratio < 4.5) poor.push([ratio.toFixed(2), node.tagName, node.className, node.textContent.slice(0, 30)]);
  }
  return {poor, seen};
}"""


@pytest.fixture
def leaks(make: type[Make]) -> RunReport:
    """Three findings that differ in all one can filter by, among clean tests of two workers, with their memory."""

    def memory(size: int) -> dict[str, dict[str, int]]:
        return {
            "cuda:0": {"allocated_before": 0, "allocated_after": size * MIB, "peak": 2 * size * MIB},
            "host": {"heap_before": 300 * MIB, "heap_after": 300 * MIB + size},
        }

    cache = Holder(
        "cache", "app.positions", "app.positions (cached result)", (PathStep("()", "lru_cache"),), deciding=0
    )
    tests = [make.test(f"tests/test_clean.py::test_{at}", worker=f"gw{at % 2}", memory=memory(at)) for at in range(130)]
    small = make.finding(bytes=MIB, device="cpu", kind="retained", holder=cache, fingerprint="beef")
    tests[20] = make.test("tests/test_b.py::test_small", small, worker="gw0", memory=memory(20))
    tests[40] = make.test("tests/test_c.py::test_large", make.finding(bytes=9 * MIB), worker="gw0", memory=memory(40))
    known = make.finding(failed=False, known=True, bytes=5 * MIB)
    tests[60] = make.test("tests/test_a.py::test_known", known, worker="gw0", memory=memory(60))
    return make.report(*tests)


SMALL, LARGE, KNOWN = "tests/test_b.py::test_small", "tests/test_c.py::test_large", "tests/test_a.py::test_known"


def test_filters_narrow_the_findings_and_say_how_many_are_left(visit: Opener, leaks: RunReport) -> None:
    visited = visit(leaks)
    page = visited.page
    assert visited.shown() == [LARGE, SMALL, KNOWN]
    for name, value, left in (
        ("state", "leaked", [LARGE, SMALL]),
        ("state", "known", [KNOWN]),
        ("kind", "retained", [SMALL]),
        ("device", "cpu", [SMALL]),
        ("holder", "module", [LARGE, KNOWN]),
    ):
        page.select_option(f"[data-filter={name}]", value)
        assert visited.shown() == left
        page.select_option(f"[data-filter={name}]", "")
    page.fill("#filter-text", "POSITIONS beef")
    page.press("#filter-text", "Enter")
    assert visited.shown() == [SMALL]
    assert page.inner_text("#count") == "1 of 3 findings"
    page.fill("#filter-text", "no such thing")
    page.press("#filter-text", "Enter")
    assert visited.shown() == []
    assert page.is_visible("#nothing")
    page.click("#clear")
    assert visited.shown() == [LARGE, SMALL, KNOWN]
    assert page.inner_text("#count") == "3 findings"
    page.click("#culprits summary:has-text('app.positions')")
    page.click("#culprits .pick:visible")
    assert visited.shown() == [SMALL]
    assert visited.complaints == []


def test_columns_sort_both_ways_and_say_so(visit: Opener, leaks: RunReport) -> None:
    visited = visit(leaks)
    page = visited.page
    header = page.locator("th[data-sort=name]")
    assert header.get_attribute("aria-sort") == "none"
    header.locator("button").click()
    assert visited.shown() == [KNOWN, SMALL, LARGE]
    assert header.get_attribute("aria-sort") == "ascending"
    header.locator("button").click()
    assert visited.shown() == [LARGE, SMALL, KNOWN]
    assert header.get_attribute("aria-sort") == "descending"
    page.click("th[data-sort=bytes] button")
    assert visited.shown() == [LARGE, KNOWN, SMALL]
    page.select_option("#sort", "order")
    assert visited.shown() == [SMALL, LARGE, KNOWN]


def test_a_finding_opens_to_its_holder_path_and_creating_line(visit: Opener, leaks: RunReport) -> None:
    page = visit(leaks).page
    assert page.locator(".detail:visible").count() == 0
    page.click("#finding-2 .c-device")
    detail = page.locator("#finding-2 .detail")
    assert detail.is_visible()
    assert detail.locator(".chain .deciding").inner_text() == "() to float32 [1024, 1024] cut here"
    assert "app/model.py:14" in detail.inner_text()
    page.click("#finding-2 .c-device")
    assert not detail.is_visible()


def test_all_can_be_done_with_the_keyboard(visit: Opener, leaks: RunReport) -> None:
    page = visit(leaks).page
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "filter-text"
    assert page.input_value("#filter-text") == ""
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.closest('tbody').id") == "finding-2"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    assert page.is_visible("#finding-2 .detail")
    assert page.get_attribute("#finding-2 .row button", "aria-expanded") == "true"
    page.keyboard.press("Escape")
    assert not page.is_visible("#finding-2 .detail")
    page.keyboard.press("End")
    assert page.evaluate("document.activeElement.closest('tbody').id") == "finding-3"
    page.keyboard.press("Home")
    page.keyboard.press("ArrowUp")
    assert page.evaluate("document.activeElement.id") == "filter-text"


def test_charts_are_drawn_and_their_dots_lead_to_findings(visit: Opener, leaks: RunReport) -> None:
    visited = visit(leaks)
    page = visited.page
    assert page.locator(".chart canvas").count() == 2
    assert page.locator(".chart > svg:visible").count() == 0
    painted = """canvas => new Set(new Uint32Array(
        canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.buffer)).size"""
    assert page.locator(".chart canvas").first.evaluate(painted) > 10
    assert page.locator(".legend").first.inner_text().split() == ["gw0", "gw1"]
    over = page.locator(".chart .u-over").first
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    x, y = box["x"] + box["width"] * 40 / 129, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    assert page.locator(".readout").first.inner_text() == f"Test 41: {LARGE}, 40 MiB, leaked"
    page.mouse.click(x, y)
    assert page.is_visible("#finding-1 .detail")
    page.locator(".chart select").first.select_option(label="peak")
    assert page.locator(".chart canvas").count() == 2
    assert visited.complaints == []


def test_all_tests_are_listed_a_page_at_a_time(visit: Opener, leaks: RunReport) -> None:
    page = visit(leaks).page
    rows = page.locator("#all-tests tbody tr")
    assert rows.count() == 100
    page.click("#all-tests button")
    assert rows.count() == 130
    page.fill("#all-tests input", "test_12")
    rows.nth(12).wait_for(state="detached")
    assert page.inner_text("#all-tests output") == "11 of 130 tests"
    assert not page.is_visible("#without-script")


def test_a_long_list_of_findings_is_laid_out_a_page_at_a_time(visit: Opener, make: type[Make]) -> None:
    found = [make.test(f"test_{at}", make.finding(bytes=(500 - at) * MIB)) for at in range(120)]
    visited = visit(make.report(*found), anchor="#finding-115")
    page = visited.page
    assert page.is_visible("#finding-115 .detail")
    page.reload()
    page.click("#clear")
    assert len(visited.shown()) == 100
    page.click("#more")
    assert len(visited.shown()) == 120
    assert not page.is_visible("#more")


def test_no_request_leaves_the_page(visit: Opener, leaks: RunReport, serve: Callable[[str], str]) -> None:
    visited = visit(leaks)
    visited.page.click("#expand")
    address = serve("default-src 'self'")
    served = visit(None, address)
    assert [url.partition(":")[0] for url in visited.requests] == ["file"]
    assert served.requests == [address]


def test_another_script_or_style_does_not_run(visit: Opener, leaks: RunReport) -> None:
    visited = visit(leaks)
    visited.page.evaluate(
        """() => {
            for (const name of ["script", "style"]) {
                const made = document.createElement(name);
                made.append("document.title = 'injected'");
                document.body.append(made);
            }
            const picture = document.createElement("img");
            picture.src = "https://example.invalid/x.png";
            document.body.append(picture);
        }"""
    )
    assert "injected" not in visited.page.title()
    for refused in ("TrustedScript", "style-src", "img-src"):
        assert any(refused in complaint for complaint in visited.complaints), refused


@pytest.mark.parametrize("how", ["strict server", "scripts off"])
def test_every_finding_can_be_read_without_script(
    how: str, visit: Opener, leaks: RunReport, serve: Callable[[str], str], tmp_path: Path
) -> None:
    write_report(leaks, tmp_path / "report.html")
    off = how == "scripts off"
    visited = visit(None, "", java_script_enabled=False) if off else visit(None, serve(STRICT))
    page = visited.page
    assert visited.shown() == [LARGE, SMALL, KNOWN]
    assert page.locator(".chart svg polyline").count() == 4
    assert page.locator(".chart svg").first.bounding_box()["height"] > 100
    page.click("#finding-2 summary")
    assert page.is_visible("#finding-2 .chain .deciding")
    assert "127 of them left nothing behind" in page.inner_text("#without-script")
    assert not page.is_visible("#filters")


def test_hostile_text_runs_nothing_and_adds_nothing(visit: Opener, make: type[Make]) -> None:
    text = " ".join(HOSTILE)
    visited = visit(full_report(make, text))
    page = visited.page
    page.click("#expand")
    page.mouse.move(550, 350)
    page.fill("#all-tests input", "<")
    page.click("text=link to this finding >> nth=0")
    assert visited.complaints == []
    assert len({url.partition("#")[0] for url in visited.requests}) == 1
    assert (
        page.locator("img, iframe, object, embed, [onload], [onerror], [onmouseover], [onfocus], [autofocus]").count()
        == 0
    )
    assert page.locator("script").count() == 4
    assert "alert(1)" in page.inner_text("#finding-1")
    assert "\u202e" not in page.content()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_has_contrast_and_controls_have_names(theme: str, visit: Opener, leaks: RunReport) -> None:
    page = visit(leaks, color_scheme=theme).page
    page.click("#expand")
    found = page.evaluate(CONTRAST)
    assert found["seen"] > 200
    assert found["poor"] == []
    tree = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    named: list[tuple[str, str]] = [
        (node["role"]["value"], node.get("name", {}).get("value", "")) for node in tree if not node["ignored"]
    ]
    controls = [
        one for one in named if one[0] in ("button", "combobox", "searchbox", "link", "form", "region", "table")
    ]
    assert len(controls) > 30
    assert [one for one in controls if not one[1] and one[0] != "table"] == []
    assert ("heading", "Findings") in named


def test_the_theme_follows_the_system_until_it_is_switched(visit: Opener, leaks: RunReport) -> None:
    page = visit(leaks, color_scheme="dark").page
    backdrop: Any = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(backdrop)
    page.click("#theme")
    light = page.evaluate(backdrop)
    assert (dark, light) == ("rgb(17, 20, 26)", "rgb(246, 247, 249)")
    page.reload()
    assert page.evaluate(backdrop) == light


def test_a_narrow_screen_needs_no_sideways_scrolling(visit: Opener, leaks: RunReport) -> None:
    page = visit(leaks, viewport={"width": 360, "height": 700}).page
    page.click("#finding-1 .row button")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.is_visible("#finding-1 .chain")


@pytest.mark.parametrize("scripts", [True, False])
def test_a_narrow_screen_shows_how_much_each_holder_keeps(scripts: bool, visit: Opener, leaks: RunReport) -> None:
    page = visit(leaks, viewport={"width": 360, "height": 700}, java_script_enabled=scripts).page
    rows = page.locator("#culprits summary")
    assert rows.count() == 2
    for row in rows.all():
        box = row.locator(".size").bounding_box()
        assert 0 < box["x"] < box["x"] + box["width"] <= 360
        assert "test" in row.locator(".facts-of").inner_text()


@pytest.mark.parametrize("scripts", [True, False])
def test_a_holder_unfolds_to_the_tests_that_left_memory_with_it(scripts: bool, visit: Opener, leaks: RunReport) -> None:
    page = visit(leaks, java_script_enabled=scripts).page
    row = page.locator("#culprits details", has_text="app.positions")
    leaf = row.locator("li a", has_text="test_small")
    assert not leaf.is_visible()
    row.locator("summary").click()
    leaf.click()
    assert page.url.endswith("#finding-2")
    assert row.locator(".pick").is_visible() == scripts


def test_the_times_of_suspects_fit_a_narrow_screen(visit: Opener, make: type[Make]) -> None:
    seconds = {"check": 2.31, "reruns": 0.9, "search": 1.2}
    test = make.test("tests/test_loop.py::test_falls[a-rather-long-parameter]", make.finding(), suspect_s=seconds)
    page = visit(make.report(test), viewport={"width": 360, "height": 700}).page
    for words in ("2.3 s", "900 ms", "1.2 s"):
        box = page.locator("#times td", has_text=words).bounding_box()
        assert 0 < box["x"] < box["x"] + box["width"] <= 360


def test_the_labels_of_a_chart_can_be_read_on_a_narrow_screen_without_scripts(visit: Opener, leaks: RunReport) -> None:
    page = visit(leaks, viewport={"width": 360, "height": 700}, java_script_enabled=False).page
    assert page.locator(".chart svg text").first.bounding_box()["height"] > 9
    frame = page.locator(".chart").first.bounding_box()
    assert frame["x"] + frame["width"] <= 360
