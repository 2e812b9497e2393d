"use strict";
// Behaviour of the page: a table that sorts and filters, figures in the colours of the page, and one chosen norm.

const data = JSON.parse(document.getElementById("data").textContent);
const config = {
  responsive: true,
  displaylogo: false,
  showSendToCloud: false, // plotly would offer to upload the figure
  plotlyServerURL: "",
  modeBarButtonsToRemove: ["lasso2d", "select2d"],
};
const table = document.getElementById("norms");
const body = table.tBodies[0];
const headings = [...table.tHead.rows[0].cells];

// ---- the table

const order = new Intl.Collator(undefined, { numeric: true });

function sortBy(heading) {
  const column = headings.indexOf(heading);
  const direction = heading.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
  const sign = direction === "ascending" ? 1 : -1;
  const numeric = heading.classList.contains("numeric");
  const valueOf = (row) => row.cells[column].dataset.value;
  const compare = numeric ? (a, b) => a - b : order.compare;
  const rows = [...body.rows].sort((one, other) => {
    const [a, b] = [valueOf(one), valueOf(other)];
    if (a === undefined || b === undefined) return (a === undefined) - (b === undefined); // last, either way
    return sign * compare(a, b);
  });
  body.append(...rows);
  for (const each of headings) each.setAttribute("aria-sort", each === heading ? direction : "none");
}

function filterBy(text) {
  const wanted = text.toLowerCase();
  let matches = 0;
  for (const row of body.rows) {
    const fits = data.norms[row.dataset.norm].name.toLowerCase().includes(wanted);
    row.hidden = !fits;
    matches += fits;
  }
  document.getElementById("matches").textContent = `${matches} of ${body.rows.length}`;
}

for (const heading of headings) heading.firstElementChild.addEventListener("click", () => sortBy(heading));
document.getElementById("filter").addEventListener("input", (event) => filterBy(event.target.value));
body.addEventListener("click", (event) => choose(Number(event.target.closest("tr").dataset.norm)));

// ---- figures in the colours of the page

function theme() {
  const style = getComputedStyle(document.documentElement);
  const [ink, line, panel] = ["--ink", "--line", "--panel"].map((name) => style.getPropertyValue(name).trim());
  const axis = { gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true };
  const spatial = { gridcolor: line, zerolinecolor: line, linecolor: line, showbackground: false };
  return {
    layout: {
      font: { color: ink, family: "system-ui, sans-serif", size: 12 },
      title: { x: 0.02, xanchor: "left", font: { size: 15 } },
      paper_bgcolor: panel,
      plot_bgcolor: panel,
      hoverlabel: { bgcolor: panel, bordercolor: line, font: { color: ink } },
      modebar: { bgcolor: panel, color: line, activecolor: ink },
      xaxis: axis,
      yaxis: axis,
      scene: { xaxis: spatial, yaxis: spatial, zaxis: spatial },
    },
  };
}

function draw(id, traces, layout) {
  return Plotly.react(id, traces, { ...layout, template: theme() }, config);
}

function drawAcrossDepth() {
  for (const [name, figure] of Object.entries(data.depth)) draw(`depth-${name}`, figure.data, figure.layout);
}

// ---- the chosen norm

let chosen = 0;

function choose(index) {
  chosen = index;
  document.getElementById("choice").value = String(index);
  for (const row of body.rows) row.toggleAttribute("aria-current", Number(row.dataset.norm) === index);
  const norm = data.norms[index];
  document.getElementById("note").textContent = norm.note ?? "";
  document.getElementById("nothing").hidden = Boolean(norm.lengths || norm.gains);
  showFacts(norm.facts);
  drawChosen();
}

function drawChosen() {
  const norm = data.norms[chosen];
  if (visible("chosen-ellipsoid", norm.longest)) drawEllipsoid(norm);
  for (const name of ["lengths", "gains"]) {
    if (visible(`chosen-${name}`, norm[name])) {
      const [x, y] = norm[name];
      const { data: [curve], layout } = data.chosen[name];
      draw(`chosen-${name}`, [{ ...curve, x, y }], layout);
    }
  }
}

function visible(id, values) {
  document.getElementById(id).hidden = !values;
  return Boolean(values);
}

function drawEllipsoid(norm) {
  const { data: [surface, axes, points], layout } = data.chosen.ellipsoid;
  const traces = [stretched(surface, norm.longest), { ...stretched(axes, norm.longest), text: axisTexts(norm.labels) }];
  if (norm.points) {
    const [x, y, z] = norm.points;
    traces.push({ ...points, x, y, z });
  }
  const scene = { ...layout.scene, aspectmode: norm.proportional ? "data" : "cube" };
  draw("chosen-ellipsoid", traces, { ...layout, scene, uirevision: "keep the reader's camera" });
}

function stretched(trace, [first, second, third]) {
  return { ...trace, x: times(trace.x, first), y: times(trace.y, second), z: times(trace.z, third) };
}

function times(values, factor) {
  return values.map((value) => (Array.isArray(value) ? times(value, factor) : value === null ? null : value * factor));
}

function axisTexts([first, second, third]) {
  return ["", first, "", "", second, "", "", third];
}

function showFacts(facts) {
  const entries = facts.flatMap(([label, value]) => [element("dt", label), element("dd", value)]);
  document.getElementById("facts").replaceChildren(...entries);
}

function element(tag, text) {
  const made = document.createElement(tag);
  made.textContent = text;
  return made;
}

// ---- start, and follow the reader's colours and printer

function drawAll() {
  drawAcrossDepth();
  if (data.norms.length) drawChosen();
}

drawAcrossDepth();
for (const name of Object.keys(data.depth)) {
  document.getElementById(`depth-${name}`).on("plotly_click", (event) => {
    choose(event.points[0].x);
    document.getElementById("one").scrollIntoView({ behavior: "smooth" });
  });
}
if (data.norms.length) {
  document.getElementById("choice").addEventListener("change", (event) => choose(Number(event.target.value)));
  choose(0);
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
for (const [moment, printing] of [["beforeprint", true], ["afterprint", false]]) {
  addEventListener(moment, () => {
    document.documentElement.classList.toggle("printing", printing);
    drawAll();
  });
}
