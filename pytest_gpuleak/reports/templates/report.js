// Makes the report quicker to read: filters, sorts, opens findings by key, redraws the charts and lists all tests.
// Everything that it shows is on the page without it, but for the clean tests. Text goes in as text alone.
(function () {
  "use strict";

  const root = document.documentElement;
  const byId = (id) => document.getElementById(id);
  const data = JSON.parse(byId("data").textContent);
  const count = (number) => number.toLocaleString("en-US");

  function element(name, attributes, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }

  const UNITS = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  function size(bytes) {
    let unit = 0;
    let value = bytes;
    while (Math.abs(value) >= 1024 && unit < UNITS.length - 1) {
      value /= 1024;
      unit += 1;
    }
    return (unit ? value.toFixed(value % 1 ? 1 : 0) : value) + " " + UNITS[unit];
  }

  // The tests, from columns that name each file and word once.
  const { files, words, rows } = data.tests;
  const nodeid = (test) => (test[1] ? files[test[0]] + "::" + test[1] : files[test[0]]);

  // Theme: the system's until the reader chooses; kept where the browser lets a page keep anything.
  const theme = byId("theme");
  const systemDark = matchMedia("(prefers-color-scheme: dark)");
  function stored(value) {
    try {
      if (value) localStorage.setItem("gpuleak-theme", value);
      return localStorage.getItem("gpuleak-theme");
    } catch {
      return null; // a sandboxed page has no storage
    }
  }
  function isDark() {
    return root.dataset.theme ? root.dataset.theme === "dark" : systemDark.matches;
  }
  function showTheme() {
    theme.textContent = isDark() ? "Light" : "Dark";
    theme.setAttribute("aria-label", "Switch to the " + (isDark() ? "light" : "dark") + " theme");
    drawCharts();
  }
  theme.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    stored(root.dataset.theme);
    showTheme();
  });

  // Findings
  const table = byId("findings-table");
  const bodies = table ? Array.from(table.tBodies) : [];
  const form = byId("filters");
  const text = byId("filter-text");
  const sortBy = byId("sort");
  const headers = table ? Array.from(table.tHead.rows[0].cells) : [];
  const selects = form ? Array.from(form.querySelectorAll("[data-filter]")) : [];
  const cell = (body, name) => body.rows[0].querySelector(".c-" + name).textContent;
  const states = ["leaked", "known", "noted", "allowed"];
  const keys = {
    "": (body) => Number(body.id.slice(8)),
    name: (body) => cell(body, "name"),
    held: (body) => cell(body, "held"),
    kind: (body) => body.dataset.kind,
    device: (body) => body.dataset.device,
    state: (body) => states.indexOf(body.dataset.state),
    bytes: (body) => Number(body.dataset.bytes),
    order: (body) => Number(body.dataset.order),
  };
  const collator = new Intl.Collator("en", { numeric: true });
  const texts = new Map();
  let descending = false;
  let order = bodies;

  function refresh() {
    limit = PAGE;
    filter();
  }

  function searchText(body) {
    if (!texts.has(body)) texts.set(body, body.textContent.toLowerCase());
    return texts.get(body);
  }

  function toggle(body, open) {
    const opened = open === undefined ? !body.classList.contains("open") : open;
    body.classList.toggle("open", opened);
    body.querySelector("details").open = opened;
    body.querySelector(".row button").setAttribute("aria-expanded", String(opened));
  }

  const PAGE = 100; // rows laid out at once: a thousand take a browser half a second
  let limit = PAGE;

  function filter() {
    const wanted = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const body of order) {
      const matches =
        selects.every((select) => !select.value || body.dataset[select.dataset.filter] === select.value) &&
        wanted.every((word) => searchText(body).includes(word));
      shown += matches;
      const hidden = !matches || shown > limit;
      if (body.hidden !== hidden) body.hidden = hidden;
    }
    byId("count").textContent =
      shown === bodies.length ? count(shown) + (shown === 1 ? " finding" : " findings") : count(shown) + " of " + count(bodies.length) + " findings";
    byId("nothing").hidden = shown > 0;
    table.hidden = shown === 0;
    const left = Math.max(0, shown - limit);
    byId("more").hidden = !left;
    byId("more").textContent = "Show " + count(Math.min(left, PAGE)) + " more of " + count(left);
  }

  function sort() {
    const key = keys[sortBy.value];
    const keyed = bodies.map((body) => [key(body), Number(body.id.slice(8)), body]);
    const sign = descending ? -1 : 1;
    keyed.sort(
      (one, other) =>
        sign * (typeof one[0] === "number" ? one[0] - other[0] : collator.compare(one[0], other[0])) || one[1] - other[1],
    );
    order = keyed.map((entry) => entry[2]);
    table.append(...order);
    showSort();
    refresh();
  }

  function showSort() {
    for (const header of headers) {
      const active = header.dataset.sort === sortBy.value;
      header.setAttribute("aria-sort", active ? (descending ? "descending" : "ascending") : "none");
    }
  }

  function reset() {
    form.reset();
    descending = false;
    sort();
  }

  const visible = () => Array.from(table.tBodies).filter((body) => !body.hidden);
  const button = (body) => body.querySelector(".row button");

  function show(number) {
    const body = byId("finding-" + number);
    if (!body) return;
    if (body.hidden) {
      reset();
      limit = Math.max(limit, order.indexOf(body) + 1);
      filter();
    }
    toggle(body, true);
    body.scrollIntoView({ block: "center" });
    button(body).focus({ preventScroll: true });
  }

  function showLinked() {
    const match = /^#finding-(\d+)$/.exec(location.hash);
    if (match && table) show(match[1]);
  }

  function prepareFindings() {
    table.caption.textContent += ". Arrow keys move between findings, Enter opens one.";
    for (const header of headers) {
      const sorter = element("button", { type: "button" }, header.textContent);
      header.replaceChildren(sorter);
      sorter.addEventListener("click", () => {
        const key = header.dataset.sort;
        // Sizes are wanted largest first.
        descending = sortBy.value === key ? !descending : key === "bytes";
        sortBy.value = key;
        sort();
      });
    }
    for (const body of bodies) {
      const heading = body.rows[0].cells[0];
      const opener = element("button", { type: "button", "aria-expanded": "false", "aria-controls": body.id + "-more" });
      opener.append(heading.firstElementChild);
      heading.prepend(opener);
      body.rows[1].id = body.id + "-more";
    }
    table.addEventListener("click", (event) => {
      const row = event.target.closest(".row");
      // Text that is being selected, to be copied, opens nothing.
      if (row && !event.target.closest("a") && !String(getSelection())) toggle(row.parentElement);
    });
    table.addEventListener("keydown", (event) => {
      const body = event.target.closest("tbody");
      if (!body || event.target.tagName !== "BUTTON") return;
      const all = visible();
      const at = all.indexOf(body);
      const next = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: all.length - 1 }[event.key];
      if (event.key === "Escape") toggle(body, false);
      if (event.key === "ArrowRight") toggle(body, true);
      if (event.key === "ArrowLeft") toggle(body, false);
      if (next === undefined) return;
      event.preventDefault();
      if (next < 0) text.focus();
      else if (all[next]) button(all[next]).focus();
    });
    let waiting = 0;
    text.addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(refresh, 60);
    });
    text.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        text.value = "";
        refresh();
      } else if (event.key === "ArrowDown" && visible().length) {
        event.preventDefault();
        button(visible()[0]).focus();
      } else if (event.key === "Enter") {
        event.preventDefault();
        refresh();
      }
    });
    form.addEventListener("submit", (event) => event.preventDefault());
    byId("clear").addEventListener("click", reset);
    byId("more").addEventListener("click", () => {
      limit += PAGE;
      filter();
    });
    for (const select of selects) select.addEventListener("change", refresh);
    sortBy.addEventListener("change", () => {
      descending = sortBy.value === "bytes";
      sort();
    });
    byId("expand").addEventListener("click", () => {
      const all = visible();
      const open = !all.every((body) => body.classList.contains("open"));
      for (const body of all) toggle(body, open);
      byId("expand").textContent = open ? "Close all" : "Open all";
    });
    for (const link of document.querySelectorAll(".pick")) {
      link.addEventListener("click", (event) => {
        if (!link.dataset.search) return;
        event.preventDefault();
        reset();
        text.value = link.dataset.search;
        refresh();
        byId("findings").scrollIntoView();
        text.focus({ preventScroll: true });
      });
    }
    addEventListener("hashchange", showLinked);
    form.hidden = false;
    showSort(); // the page is in order as it comes
    filter();
  }

  addEventListener("keydown", (event) => {
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey && text) {
      event.preventDefault();
      text.focus();
      text.select();
    }
  });

  // Charts
  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const positions = data.workers.map(() => []);
  rows.forEach((test, at) => positions[test[4]].push(at));
  const figures = Array.from(document.querySelectorAll("[data-chart]"));
  const drawn = [];
  const STEPS = [1, 2, 5].flatMap((factor) => [0, 1, 2, 3, 4, 5, 6].map((power) => factor * 10 ** power)).sort((a, b) => a - b);
  const SIZES = Array.from({ length: 50 }, (_, power) => 2 ** power);

  function columns(chart, metric) {
    const at = rows.map((_, index) => index + 1);
    const lines = [];
    chart.values[metric].forEach((values, worker) => {
      if (!values) return;
      const line = new Array(rows.length).fill(undefined);
      values.forEach((value, index) => {
        line[positions[worker][index]] = value === null ? null : value * 1024;
      });
      lines.push([worker, line]);
    });
    const marks = { leaked: new Array(rows.length).fill(null), known: new Array(rows.length).fill(null) };
    for (const [position, , state] of chart.marks) {
      const line = lines.find((entry) => entry[0] === rows[position][4]);
      if (line) marks[state][position] = line[1][position] ?? null;
    }
    return { lines, marks, table: [at, ...lines.map((entry) => entry[1]), marks.known, marks.leaked] };
  }

  function drawChart(figure, index) {
    const chart = data.charts[index];
    const select = figure.querySelector("select");
    const metric = select ? Number(select.value) : 0;
    const { lines, table: values } = columns(chart, metric);
    const rowOf = new Map(chart.marks.map((mark) => [mark[0], mark]));
    const readout = figure.querySelector(".readout");
    const holder = figure.querySelector(".plot");
    const dim = colour("--dim");
    const edge = colour("--edge");
    const one = lines.length === 1;
    const grid = { stroke: edge, width: 1 };
    const points = (name) => ({
      label: name,
      paths: () => null,
      points: { show: true, size: 8, fill: colour("--mark-" + name), stroke: colour("--panel"), width: 1 },
    });
    const describe = (at) => {
      if (at === null || at === undefined || !rows[at]) return "";
      const line = lines.find((entry) => entry[0] === rows[at][4]);
      const value = line && line[1][at] !== undefined && line[1][at] !== null ? ", " + size(line[1][at]) : "";
      const mark = rowOf.get(at);
      return "Test " + count(at + 1) + ": " + nodeid(rows[at]) + value + (mark ? ", " + mark[2] : "");
    };
    const options = {
      width: Math.max(240, holder.clientWidth),
      height: 220,
      legend: { show: false },
      scales: { x: { time: false }, y: { range: (_, low, high) => range(low, high) } },
      axes: [
        { stroke: dim, grid: { show: false }, ticks: { ...grid, size: 5 }, size: 30, incrs: STEPS, values: (_, at) => at.map((value) => count(value)) },
        { stroke: dim, grid, ticks: { show: false }, size: 76, space: 26, incrs: SIZES, values: (_, at, _index, _space, step) => ticks(at, step) },
      ],
      series: [
        {},
        ...lines.map(([worker]) => ({
          label: data.workers[worker],
          stroke: colour("--line-" + (worker % 8)),
          width: 1.5,
          spanGaps: true,
          points: { show: false },
          fill: one ? colour("--line-0") + "1a" : undefined,
        })),
        points("known"),
        points("leaked"),
      ],
      cursor: { y: false, points: { show: false }, drag: { x: true, y: false } },
      hooks: {
        setCursor: [(plot) => (readout.textContent = describe(plot.cursor.idx) || readout.dataset.idle)],
      },
    };
    const plot = new uPlot(options, values, holder);
    plot.over.addEventListener("click", () => {
      // The nearest mark within reach of the pointer: a dot is wider than a test.
      let best = null;
      for (const mark of chart.marks) {
        const distance = Math.abs(plot.valToPos(mark[0] + 1, "x") - plot.cursor.left);
        if (distance < 8 && (!best || distance < best[0])) best = [distance, mark[1]];
      }
      if (best) show(best[1]);
    });
    return plot;
  }

  // In the unit of the highest, with the decimals that tell a step apart.
  function ticks(at, step) {
    const power = Math.min(UNITS.length - 1, Math.floor(Math.log2(Math.max(1, ...at.map(Math.abs))) / 10));
    const unit = 1024 ** power;
    const decimals = step >= unit ? 0 : Math.ceil(Math.log10(unit / step));
    return at.map((value) => (value / unit).toFixed(decimals) + " " + UNITS[power]);
  }

  function range(low, high) {
    if (low === null || high === null) return [0, 1];
    // What moves by less than a hundredth is shown as level.
    const span = Math.max(high - low, high / 100, 1024);
    const from = low > high / 2 ? Math.max(0, low - span * 0.15) : Math.min(0, low);
    return [from, high + span * 0.1];
  }

  function prepareCharts() {
    figures.forEach((figure, index) => {
      const chart = data.charts[index];
      if (!chart || !window.uPlot) return;
      figure.querySelector("svg").toggleAttribute("hidden", true);
      if (chart.metrics.length > 1) {
        const select = element("select", { "aria-label": "Counter of " + chart.device });
        chart.metrics.forEach((name, at) => select.append(element("option", { value: at }, name)));
        select.addEventListener("change", () => drawCharts());
        figure.querySelector("figcaption").append(select);
      }
      const label = chart.device + ": " + figure.querySelector(".summary").textContent;
      figure.append(element("div", { class: "plot", role: "img", "aria-label": label }));
      const idle = "Drag to zoom, double-click for all" + (chart.marks.length ? "; click a dot for its finding." : ".");
      const readout = element("p", { class: "readout" }, idle);
      readout.dataset.idle = idle;
      figure.append(readout);
      const lines = chart.values[0].map((values, worker) => (values ? worker : -1)).filter((worker) => worker >= 0);
      if (lines.length > 1) {
        const legend = element("ul", { class: "legend", "aria-label": "Workers" });
        for (const worker of lines) {
          const key = document.createElementNS("http://www.w3.org/2000/svg", "svg");
          const stroke = document.createElementNS("http://www.w3.org/2000/svg", "path");
          stroke.setAttribute("d", "M0 4H14");
          stroke.setAttribute("stroke-width", "3");
          stroke.setAttribute("class", "line line-" + (worker % 8));
          key.setAttribute("viewBox", "0 0 14 8");
          key.setAttribute("aria-hidden", "true");
          key.append(stroke);
          legend.append(element("li", {}, key, data.workers[worker]));
        }
        figure.append(legend);
      }
    });
    addEventListener("resize", () => {
      drawn.forEach((plot) => plot.setSize({ width: Math.max(240, plot.root.parentElement.clientWidth), height: 220 }));
    });
  }

  function drawCharts() {
    drawn.splice(0).forEach((plot) => plot.destroy());
    figures.forEach((figure, index) => {
      if (figure.querySelector(".plot")) drawn.push(drawChart(figure, index));
    });
  }

  // All tests, a page at a time: ten thousand rows at once would take the browser seconds.
  function prepareTests() {
    const place = byId("all-tests");
    const search = element("input", { type: "search", autocomplete: "off", spellcheck: "false", placeholder: "test, file, reason ..." });
    const verdict = element("select", {}, element("option", { value: "" }, "all"));
    const found = new Map();
    rows.forEach((test) => found.set(test[2], (found.get(test[2]) || 0) + 1));
    for (const [word, number] of found) verdict.append(element("option", { value: word }, words[word] + ": " + count(number)));
    const sorting = element("select", {});
    for (const [value, label] of [["", "order in the run"], ["name", "test"], ["slow", "slowest first"], ["check", "slowest check first"]]) {
      sorting.append(element("option", { value }, label));
    }
    const number = element("output", { "aria-live": "polite" });
    const controls = element("form", { class: "filters", role: "search", "aria-label": "Filter the tests" });
    const labelled = (title, control, kind) => element("label", kind ? { class: kind } : {}, title + " ", control);
    controls.append(labelled("Filter", search, "wide"), labelled("Verdict", verdict), labelled("Sort by", sorting));
    controls.append(element("div", { class: "actions" }, number));
    const body = element("tbody");
    const titles = ["Test", "Verdict", "Outcome", "Worker", "Duration", "Check"];
    const head = element("tr");
    titles.forEach((title, at) => {
      head.append(element("th", { scope: "col", class: (at > 3 ? "number" : "") + (at > 1 && at !== 4 ? " c-second" : "") }, title));
    });
    const list = element("table", { class: "plain" }, element("thead", {}, head), body);
    const more = element("button", { type: "button" });
    const box = element("div", { class: "scroll" }, list);
    let chosen = [];
    let shown = 0;

    function time(value, scale) {
      if (value === null) return "";
      const seconds = value / scale;
      if (seconds >= 1) return seconds.toFixed(1) + " s";
      return seconds >= 0.001 || scale === 1000 ? +(seconds * 1e3).toFixed(seconds < 0.01 ? 1 : 0) + " ms" : value + " \u00b5s";
    }
    function row(test) {
      const name = element("td", {}, element("bdi", {}, nodeid(test)));
      if (test[7] !== undefined) name.append(" ", element("small", {}, words[test[7]]));
      const state = element("span", { class: "state" }, words[test[2]]);
      if (["leaked", "allowed", "clean"].includes(words[test[2]])) state.classList.add(words[test[2]]);
      return element(
        "tr", {}, name, element("td", {}, state), element("td", { class: "c-second" }, words[test[3]]),
        element("td", { class: "c-second" }, data.workers[test[4]]), element("td", { class: "number" }, time(test[5], 1000)),
        element("td", { class: "number c-second" }, time(test[6], 1e6)),
      );
    }
    function page() {
      const next = chosen.slice(shown, shown + PAGE);
      shown += next.length;
      body.append(...next.map(row));
      more.hidden = shown >= chosen.length;
      more.textContent = "Show " + count(Math.min(PAGE, chosen.length - shown)) + " more of " + count(chosen.length - shown);
    }
    function choose() {
      const wanted = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      chosen = rows.filter((test) => {
        if (verdict.value && test[2] !== Number(verdict.value)) return false;
        if (!wanted.length) return true;
        const text = (nodeid(test) + " " + (test[7] === undefined ? "" : words[test[7]])).toLowerCase();
        return wanted.every((word) => text.includes(word));
      });
      if (sorting.value === "name") chosen.sort((one, other) => collator.compare(nodeid(one), nodeid(other)));
      if (sorting.value === "check") chosen.sort((one, other) => (other[6] || 0) - (one[6] || 0));
      if (sorting.value === "slow") chosen.sort((one, other) => (other[5] || 0) - (one[5] || 0));
      number.textContent = chosen.length === rows.length ? count(rows.length) + " tests" : count(chosen.length) + " of " + count(rows.length) + " tests";
      shown = 0;
      body.replaceChildren();
      page();
      box.hidden = !chosen.length;
    }
    let waiting = 0;
    search.addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(choose, 60);
    });
    controls.addEventListener("submit", (event) => event.preventDefault());
    verdict.addEventListener("change", choose);
    sorting.addEventListener("change", choose);
    more.addEventListener("click", page);
    place.append(controls, box, element("p", {}, more));
    choose();
    place.hidden = false;
    byId("without-script").hidden = true;
  }

  const kept = stored();
  if (kept === "light" || kept === "dark") root.dataset.theme = kept;
  if (table && form) prepareFindings();
  prepareCharts();
  theme.hidden = false;
  showTheme();
  systemDark.addEventListener("change", showTheme);
  if (rows.length) prepareTests();
  showLinked();
  root.dataset.ready = "true";
})();
