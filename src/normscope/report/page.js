// The page: the map, the chosen norm, links to places, the theme; everything is drawn for the width at hand.

const data = JSON.parse(document.getElementById("data").textContent);
const RANK = ["error", "warning", "note"], SIGN = { error: "■", warning: "▲", note: "●" };
const byId = (id) => document.getElementById(id);
const severityAt = data.norms.map((_, at) => RANK.find((rank) => data.findings.some((each) => each.severity === rank && each.sites.includes(at))) || null);
let chosen = firstChoice(), mapButtons = new Map(), lastWidth = 0;

function firstChoice() {
  const worst = RANK.map((rank) => severityAt.indexOf(rank)).find((at) => at >= 0);
  return worst === undefined ? 0 : worst;
}
function placeName(at) {
  for (const stack of data.stacks) for (const column of stack.columns) for (const [row, norm] of column.cells) {
    if (norm === at) return row === null ? seen(data.norms[at].name, 60) : `${stack.title ? stack.title + " " : ""}block ${column.label}, ${seen(stack.rows[row], 40)}`;
  }
  return seen(data.norms[at].name, 60);
}

// Addresses: #norm=NAME&plane=…&at=…
function fromAddress() {
  const wanted = new URLSearchParams(location.hash.slice(1));
  if (wanted.get("plane")) chosenPlane = wanted.get("plane");
  const at = data.norms.findIndex((norm) => well(norm.name) === wanted.get("norm"));
  if (at >= 0 && at !== chosen) choose(at, false);
  else if (wanted.get("plane")) drawNorm();
  const target = wanted.get("at") && byId(`at-${wanted.get("at")}`);
  if (target) target.scrollIntoView();
}
function toAddress(changes) {
  const now = new URLSearchParams(location.hash.slice(1));
  for (const [name, value] of Object.entries(changes)) now.set(name, value);
  history.replaceState(null, "", `#${now}`);
}

function choose(at, tell = true) {
  mapButtons.get(chosen)?.setAttribute("aria-pressed", "false");
  chosen = at;
  mapButtons.get(chosen)?.setAttribute("aria-pressed", "true");
  for (const [number, button] of mapButtons) button.tabIndex = number === chosen ? 0 : -1;
  for (const line of document.querySelectorAll("line.here")) {
    const x = line.ownerSVGElement.xOf(at);
    line.style.display = x === null ? "none" : "";
    if (x !== null) { line.setAttribute("x1", x); line.setAttribute("x2", x); }
  }
  if (tell) toAddress({ norm: well(data.norms[at].name) });
  drawNorm();
}

function drawNorm() {
  if (!byId("choice") || !data.norms.length) return;
  const norm = data.norms[chosen];
  byId("norm-name").textContent = seen(norm.name || "(the model)");
  byId("norm-says").textContent = norm.says;
  byId("choice").value = String(chosen);
  byId("before").disabled = chosen === 0;
  byId("after").disabled = chosen === data.norms.length - 1;
  const facts = byId("norm-facts");
  facts.replaceChildren();
  for (const [label, value] of [["place", placeName(chosen)], ...norm.facts]) html(facts, "li", { style: "list-style:none" }, `${label} `, html(null, "b", {}, html(null, "bdi", {}, value)));
  const about = byId("norm-findings");
  about.replaceChildren();
  data.findings.forEach((each, at) => {
    const starts = each.sites.includes(chosen), holds = each.norms.includes(chosen);
    if (!starts && !(holds && each.severity !== "note")) return; // notes are often about nearly all norms
    const many = new Set([...each.sites, ...each.norms]).size;
    const where = starts && !holds ? "starts in this block, after this norm: " : many > 1 ? `one of ${many} norms with a finding that names the worst: ` : "";
    html(about, "li", { class: each.severity }, html(null, "span", { "aria-hidden": "true" }, SIGN[each.severity] + " "), where, html(null, "a", { href: `#finding-${at}` }, each.title));
  });
  const host = byId("norm-panels");
  host.replaceChildren();
  for (const panel of norm.panels) {
    const box = html(host, "div", { class: `panel${panel.wide ? " wide" : ""}`, id: `at-norm-${panel.id}` });
    html(box, "h3", { class: "cut" }, panel.title);
    if (panel.see) html(box, "p", { class: "see" }, panel.see);
    drawMarks(panel.marks, html(box, "div"));
    for (const note of panel.notes) html(box, "p", { class: "notes" }, note);
    if (panel.command) html(box, "code", { class: "command" }, panel.command);
    if (panel.paper) html(box, "p", { class: "paper" }, panel.paper);
    if (panel.formula) html(box, "details", { class: "formula" }, html(null, "summary", {}, "The formula"), html(null, "p", {}, panel.formula));
  }
}

function drawMarks(marks, host) {
  const width = Math.floor(host.getBoundingClientRect().width) || 600;
  for (const mark of marks) DRAW[mark.mark](mark, html(host, "figure"), width);
}

function drawMap() {
  const host = byId("map");
  if (!host) return;
  const held = mapButtons.size && [...mapButtons.values()].includes(document.activeElement);
  host.replaceChildren();
  mapButtons = new Map();
  const width = Math.floor(host.getBoundingClientRect().width), left = width < 620 ? 66 : 128;
  const some = new Set();
  for (const stack of data.stacks) {
    const room = width - left;
    const cell = Math.max(7, Math.min(84, room / stack.columns.length)), most = cell > 7 ? stack.columns.length : Math.max(1, Math.floor(room / cell));
    const across = Math.ceil(stack.columns.length / Math.ceil(stack.columns.length / most)); // bands of the same length
    if (stack.title) html(host, "h3", { style: "margin-top:14px" }, seen(stack.title, 80));
    for (let start = 0; start < stack.columns.length; start += across) drawBand(host, stack, stack.columns.slice(start, start + across), cell, left, width, some);
  }
  const legend = html(host, "p", { class: "legend" });
  for (const rank of RANK) if (some.has(rank)) html(legend, "span", {}, html(null, "span", { class: rank, "aria-hidden": "true" }, SIGN[rank] + " "), rank);
  html(legend, "span", {}, html(null, "i"), "no finding starts there");
  html(legend, "span", {}, "arrow keys move, Enter chooses");
  host.querySelector(".map")?.parentElement.insertBefore(legend, host.querySelector(".map").nextSibling);
  if (held) mapButtons.get(chosen)?.focus();
}

function drawBand(host, stack, columns, cell, left, width, some) {
  const rows = Math.max(1, stack.rows.length);
  const box = html(host, "div", { class: "map", role: "group", "aria-label": `Norms${stack.title ? " of " + seen(stack.title, 60) : ""}`, style: `grid-template-columns:${left - 2}px repeat(${columns.length}, ${cell - 2}px)` });
  const at = new Map();
  stack.rows.forEach((label, row) => html(box, "span", { style: `grid-area:${row + 1}/1` , title: seen(label, 80) }, seen(left < 100 ? label.replace(/^before (the )?/, "") : label, 24)));
  columns.forEach((column, place) => {
    for (const [row, norm] of column.cells) {
      const severity = severityAt[norm];
      some.add(severity);
      const spot = row === null ? `1/${place + 2}/${rows + 1}/${place + 3}` : `${row + 1}/${place + 2}`;
      const button = html(box, "button", { type: "button", "aria-pressed": String(norm === chosen), tabindex: norm === chosen ? 0 : -1, class: severity ? `has-${severity}` : null, "aria-label": `${placeName(norm)}${severity ? ", " + severity : ""}`, title: seen(data.norms[norm].name, 120), style: `grid-area:${spot};${row === null ? "height:auto" : ""}`, on: { click: () => choose(norm), keydown: (event) => moveInMap(event, norm) } }, cell > 13 && severity ? SIGN[severity] : "");
      mapButtons.set(norm, button);
      at.set(norm, left + cell * (place + (row === null ? 0.5 : (row + 0.5) / rows)) - 1);
    }
  });
  html(box, "span", { style: `grid-area:${rows + 1}/1` }, stack.rows.length ? "block" : "");
  const every = cell >= 22 ? 1 : 5;
  columns.forEach((column, place) => {
    const single = column.cells[0][0] === null, number = Number(column.label);
    const label = single ? (stack.rows.length ? (column === stack.columns[0] ? "first" : "last") : "") : number % (every === 1 && columns.length > 16 ? 5 : every) === 0 ? column.label : "";
    if (label) html(box, "span", { class: "column", style: `grid-area:${rows + 1}/${place + 2}` }, label);
  });
  const norms = [...at.keys()], xOf = (norm) => at.get(norm), end = left + cell * columns.length;
  drawTracks(host, norms, xOf, left, end);
  for (const marks of Object.values(data.lanes)) for (const mark of marks) {
    const figure = html(host, "figure"), drawing = lane(mark, figure, Math.max(end, Math.min(width, 320)), { xOf, left, columns: norms, sites: [] });
    if (!drawing) { figure.remove(); continue; }
    drawing.xOf = (norm) => (at.has(norm) ? at.get(norm) : null);
    const x = drawing.xOf(chosen);
    svg(drawing, "line", { class: "here", x1: x || 0, x2: x || 0, y1: 0, y2: drawing.getAttribute("height"), style: x === null ? "display:none" : null });
  }
}

function drawTracks(host, norms, xOf, left, end) {
  const shown = data.findings.filter((each) => norms.some((norm) => each.norms.includes(norm) || each.sites.includes(norm)));
  if (!shown.length) return;
  const figure = html(host, "figure"), narrow = left < 100, step = narrow ? 34 : 21;
  html(figure, "figcaption", {}, "Findings, from left to right. Tall mark: the part of a block that causes it; small marks: norms where it holds");
  const drawing = canvas(figure, Math.max(end, 300), step * shown.length + 4, shown.map((each) => `${each.label}: ${each.sites.length} sites, ${each.norms.length} norms`).join("; "));
  shown.forEach((each, row) => {
    const y = step * row + (narrow ? 24 : 11);
    svg(drawing, "text", { x: 0, y: narrow ? y - 11 : y + 4 }, each.label);
    svg(drawing, "line", { class: "hair", x1: left, x2: end, y1: y, y2: y });
    for (const norm of norms) {
      const site = each.sites.includes(norm);
      if (!site && !each.norms.includes(norm)) continue;
      svg(drawing, "rect", { class: `tick-${each.severity}`, x: xOf(norm) - (site ? 2.5 : 2), y: y - (site ? 6 : 1.5), width: site ? 5 : 4, height: site ? 12 : 3, rx: 1 });
    }
  });
}

function moveInMap(event, norm) {
  const spot = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[event.key];
  if (!spot) return;
  event.preventDefault();
  for (const stack of data.stacks) {
    const place = stack.columns.findIndex((column) => column.cells.some((each) => each[1] === norm));
    if (place < 0) continue;
    const cells = stack.columns[place].cells, row = cells.findIndex((each) => each[1] === norm);
    const next = spot[0] ? stack.columns[place + spot[0]]?.cells : cells;
    const wanted = next && (spot[0] ? next[Math.min(row, next.length - 1)] : next[row + spot[1]]);
    if (wanted) mapButtons.get(wanted[1]).focus();
  }
}

function drawAll() {
  lastWidth = document.documentElement.clientWidth;
  drawMap();
  drawNorm();
  for (const host of document.querySelectorAll("[data-panel]")) {
    host.replaceChildren();
    drawMarks(data.panels[`${host.dataset.section}/${host.dataset.panel}`] || [], host);
  }
  for (const host of document.querySelectorAll("[data-figure]")) {
    host.replaceChildren();
    const finding = data.findings[host.dataset.figure], mark = finding.lane && data.lanes[finding.lane] && data.lanes[finding.lane][0];
    if (mark) lane(mark, html(host, "figure"), Math.min(300, Math.floor(host.getBoundingClientRect().width)), { small: true, sites: finding.sites.some((each) => finding.norms.includes(each)) ? finding.sites : finding.norms.slice(0, 1) });
  }
}

const theme = byId("theme");
function themed() { theme.textContent = document.documentElement.dataset.theme === "dark" ? "Light" : "Dark"; }
theme.addEventListener("click", () => { document.documentElement.dataset.theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark"; themed(); });
themed();
if (byId("choice")) {
  data.norms.forEach((_, at) => html(byId("choice"), "option", { value: at }, placeName(at)));
  byId("choice").addEventListener("change", (event) => choose(Number(event.target.value)));
  byId("before").addEventListener("click", () => choose(chosen - 1));
  byId("after").addEventListener("click", () => choose(chosen + 1));
}
for (const heading of document.querySelectorAll(".cut")) heading.addEventListener("click", () => heading.classList.toggle("open"));
byId("playground").addEventListener("toggle", () => {
  const root = document.querySelector("#playground .ns-playground");
  if (byId("playground").open && !root.dataset.alive) { root.dataset.alive = "yes"; normscopePlayground.init(root); }
});
let waiting = 0;
addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(() => { if (document.documentElement.clientWidth !== lastWidth) drawAll(); }, 150); });
addEventListener("hashchange", fromAddress);
addEventListener("beforeprint", () => document.querySelectorAll("details.formula").forEach((each) => { each.open = true; }));
drawAll();
fromAddress();
