"use strict";
// Marks: each function draws one mark of the data into an element, for the width at hand. All texts are set as text.

const SVG = "http://www.w3.org/2000/svg";

function add(parent, made, attributes, ...children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, act] of Object.entries(value)) made.addEventListener(event, act);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  if (parent) parent.append(made);
  return made;
}
const html = (parent, tag, attributes, ...children) => add(parent, document.createElement(tag), attributes, ...children);
const svg = (parent, tag, attributes, ...children) => add(parent, document.createElementNS(SVG, tag), attributes, ...children);

// Control and direction marks become ·, line breaks ↵; at most so many characters.
function seen(text, most) {
  const all = String(text), short = all.length > (most || 2000);
  const kept = short ? all.slice(0, most || 2000) : all;
  return kept.replace(/\n/g, "↵").replace(/[\p{Cc}\p{Cf}\u2028\u2029]/gu, "·") + (short ? "…" : "");
}

const ruler = document.createElement("canvas").getContext("2d");
function widthOf(text, font) {
  ruler.font = font || "12px system-ui, sans-serif";
  return ruler.measureText(text).width;
}

const UP = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };
function digits(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value), sign = value < 0 ? "−" : "";
  if (size >= 1000 && size < 1e9) return sign + Math.round(size).toLocaleString("en-US");
  if (size >= 1e-3 && size < 1000) return sign + String(Number(size.toPrecision(3)));
  let exponent = Math.floor(Math.log10(size)), lead = size / 10 ** exponent;
  lead = Number(lead.toPrecision(3));
  if (lead === 10) { lead = 1; exponent += 1; }
  return sign + lead + "·10" + [...String(exponent)].map((each) => UP[each]).join("");
}
const share = (value) => digits(100 * value) + "%";

// Packed series: one byte on a log scale, float32, or 16 bits from −1 to 1.
function unpacked(packed) {
  if (packed === null || Array.isArray(packed)) return packed;
  const [kind] = Object.keys(packed), text = atob(packed[kind]), bytes = new Uint8Array(text.length);
  for (let at = 0; at < text.length; at++) bytes[at] = text.charCodeAt(at);
  if (kind === "log") return Array.from(bytes, (each) => (each ? 10 ** ((9 * (each - 1)) / 254 - 9) : 0));
  const view = new DataView(bytes.buffer), size = kind === "f32" ? 4 : 2, all = [];
  for (let at = 0; at < bytes.length; at += size) all.push(size === 4 ? view.getFloat32(at, true) : view.getInt16(at, true) / 32767);
  return all;
}

function scale(low, high, from, to, log) {
  const turn = log ? Math.log10 : (value) => value, a = turn(low), b = turn(high);
  return (value) => from + ((to - from) * ((log && value <= 0 ? a : turn(value)) - a)) / (b - a || 1);
}
// Ticks at 1, 10, 100 or at 1, 2, 5, never more than fit.
function ticksOf(low, high, log, most) {
  if (!log) {
    const rough = (high - low) / Math.max(1, most - 1), power = 10 ** Math.floor(Math.log10(rough || 1));
    const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough * 0.999) || power, all = [];
    for (let at = Math.ceil(low / step - 1e-9); at * step <= high * (1 + 1e-9); at++) all.push(Number((at * step).toPrecision(12)));
    return all;
  }
  const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9);
  if (last - first < 1) {
    const all = [];
    for (let power = first - 1; power <= last + 1; power++) for (const lead of [1, 2, 5]) all.push(lead * 10 ** power);
    return all.filter((each) => each >= low * 0.999 && each <= high * 1.001);
  }
  const every = Math.max(1, Math.ceil((last - first + 1) / most)), all = [];
  for (let power = first; power <= last; power += every) all.push(10 ** power);
  return all;
}

function canvas(host, width, height, sentence) {
  return svg(host, "svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": seen(sentence, 400) });
}
// The numbers of a drawing, made when they are asked for.
function numbers(host, label, make) {
  const details = html(host, "details", { class: "numbers" }, html(null, "summary", {}, label));
  details.addEventListener("toggle", () => {
    if (details.open && details.children.length === 1) {
      const [headings, rows] = make();
      const box = html(details, "div", { class: "scroller", tabindex: 0, role: "region", "aria-label": label });
      const table = html(box, "table");
      const head = html(html(table, "thead"), "tr");
      for (const heading of headings) html(head, "th", { scope: "col" }, heading);
      const body = html(table, "tbody");
      for (const row of rows) {
        const line = html(body, "tr");
        for (const cell of row) html(line, "td", {}, seen(cell, 200));
      }
    }
  });
}

// Places for labels that keep apart: the height nearest to the wanted one where no label is yet, null if there is none.
function apart(most = 1e9, least = 10) {
  const taken = [];
  return (x, y, width, end) => {
    const from = end ? x - width : x, to = from + width;
    const free = (at) => taken.every(([a, b, c]) => Math.abs(c - at) >= 14 || from > b + 4 || to < a - 4);
    const tries = [0, 7, -7, 14, -14].map((each) => y + each), at = tries.find((each) => each > least && each < most && free(each));
    if (at === undefined) return null;
    taken.push([from, to, at]);
    return at;
  };
}

function several(value) {
  return value === null || value === undefined ? [] : Array.isArray(value) ? value : [value];
}

// A lane. `xOf` gives the middle of a column where the lane shares those of the map; `small` is a finding's drawing.
function lane(mark, host, width, { xOf = null, left = null, small = false, sites = [], columns = null } = {}) {
  const series = mark.series.map((each) => ({ ...each, values: unpacked(each.values) }));
  const total = typeof mark.columns === "number" ? mark.columns : mark.columns.length;
  const inView = columns || [...Array(typeof mark.columns === "number" ? series[0].values.length : total).keys()];
  const all = series.flatMap((each) => inView.flatMap((at) => several(each.values[at])));
  const known = all.filter((each) => each !== null && (!mark.log || each > 0));
  const extra = mark.lines.map((line) => line.at);
  if (!known.length) { html(host, "p", { class: "soft" }, "Nothing to show here."); return; }
  let low = Math.min(...known, ...extra), high = Math.max(...known, ...extra);
  if (mark.log) { low /= 1.3; high *= 1.3; }
  else { const room = (high - low || 1) * 0.08; low = low >= 0 && low < room ? 0 : low - room; high += room; }
  const top = mark.lines.length ? 16 : 8, height = small ? 110 : xOf ? 96 : 190, foot = xOf ? 6 : 22;
  const marks = small ? [] : ticksOf(low, high, mark.log, xOf ? 5 : 7);
  const gutter = left !== null ? left : small ? 4 : Math.max(...marks.map((each) => widthOf(digits(each) + mark.unit))) + 12;
  const y = mark.upside_down ? scale(low, high, top, height - foot, mark.log) : scale(low, high, height - foot, top, mark.log);
  const inner = width - gutter - (xOf ? 0 : 10), place = new Map(inView.map((each, at) => [each, at]));
  const x = xOf || ((at) => gutter + (inner * (place.get(at) + 0.5)) / inView.length);
  if (xOf || small) html(host, "figcaption", {}, mark.title + (mark.log ? ", log scale" : ""));
  const peak = known.reduce((a, b) => Math.max(a, b), 0);
  const drawing = canvas(host, width, height, `${mark.title}: from ${digits(Math.min(...known))} to ${digits(peak)}${mark.unit}.`);
  for (const each of marks) {
    svg(drawing, "line", { class: "hair", x1: gutter, x2: width, y1: y(each), y2: y(each) });
    svg(drawing, "text", { x: gutter - 6, y: y(each) + 4, "text-anchor": "end" }, digits(each) + mark.unit);
  }
  const spot = apart(height - foot + 4);
  for (const line of mark.lines) {
    svg(drawing, "line", { class: `r-${line.role} stroke dash`, x1: gutter, x2: width, y1: y(line.at), y2: y(line.at) });
    spot(gutter + 4, y(line.at) - 4, widthOf(line.label), false);
  }
  const dense = inner / inView.length < 6, spots = dense ? 1.3 : 2.6;
  const labels = [];
  for (const [order, each] of series.entries()) {
    const group = svg(drawing, "g", { class: `r-${each.role}` });
    if (each.shape === "line") {
      const points = inView.filter((at) => several(each.values[at]).length).map((at) => `${x(at).toFixed(1)},${y(each.values[at]).toFixed(1)}`);
      svg(group, "polyline", { class: `stroke ${each.role === "example" ? "dash" : ""}`, "stroke-width": each.role === "soft" ? 1 : 1.6, points: points.join(" ") });
    }
    for (const at of inView) {
      const values = several(each.values[at]);
      if (each.shape === "bars" && values.length) {
        svg(group, "line", { class: "stroke", "stroke-width": 1.4, x1: x(at), x2: x(at), y1: y(values[0]), y2: y(values[2]) });
        svg(group, "line", { class: "stroke", "stroke-width": 1.4, x1: x(at) - 3, x2: x(at) + 3, y1: y(values[1]), y2: y(values[1]) });
      } else if (each.shape === "rings") {
        for (const value of values) svg(group, "circle", { class: "ring", cx: x(at), cy: y(value), r: 3.4 });
      } else if (each.role !== "soft" && (!small || each.shape === "dots" || sites.includes(at))) {
        for (const value of values) {
          if (value !== null) svg(group, "circle", { class: mark.log && value <= 0 ? "ring" : "fill", cx: x(at).toFixed(1), cy: y(value).toFixed(1), r: sites.includes(at) ? 4 : spots, opacity: values.length > 1 ? 0.7 : null });
        }
      }
    }
    const last = [...inView].reverse().find((at) => several(each.values[at]).length);
    if (each.shape === "line" && last !== undefined && series.length > 1) {
      const at = inView[Math.floor(inView.length * (order ? 0.72 : 0.6))];
      const here = several(each.values[at]).length ? at : last;
      const above = series.some((other) => other !== each && several(other.values[here]).length && other.shape === "line" && other.values[here] < each.values[here]);
      const from = Math.min(x(here), width - 60), down = Math.max(12, y(each.values[here]) + (above !== mark.upside_down && !mark.lines.length ? -7 : 16));
      labels.push([from, down, each.label, order ? "" : "ink"]);
    }
  }
  for (const [at, label] of mark.named) {
    if (!place.has(at)) continue;
    const value = series[0].values[at], right = x(at) > width - 150;
    labels.push([x(at) + (right ? -7 : 7), Math.max(12, y(value) + 4), label, "ink", right]);
  }
  for (const line of mark.lines) svg(drawing, "text", { class: "halo", x: gutter + 4, y: y(line.at) - 4 }, line.label);
  for (const [at, down, label, look, end] of labels) {
    const free = spot(at, down, widthOf(label), end);
    if (free !== null) svg(drawing, "text", { class: `halo ${look}`, x: at, y: free, "text-anchor": end ? "end" : "start" }, label);
  }
  if (small) { // in place of a scale: the lowest and the highest value
    for (const wanted of [Math.min(...known), peak]) {
      const at = inView.find((each) => series.some((one) => one.role !== "soft" && several(one.values[each]).includes(wanted)));
      if (at === undefined) continue;
      const end = x(at) > width / 2, words = digits(wanted) + mark.unit, from = x(at) + (end ? -6 : 6);
      const free = spot(from, Math.max(12, y(wanted) + (wanted === peak && mark.lines.length ? 15 : wanted === peak ? -6 : 14)), widthOf(words), end);
      if (free !== null) svg(drawing, "text", { class: "halo ink", x: from, y: free, "text-anchor": end ? "end" : "start" }, words);
    }
    svg(drawing, "text", { x: 4, y: height - 4 }, "first norm");
    svg(drawing, "text", { x: width - 2, y: height - 4, "text-anchor": "end" }, "last");
  } else if (!xOf) {
    const names = typeof mark.columns === "number" ? inView.map((at) => String(Math.floor((at * total) / inView.length))) : inView.map((at) => mark.columns[at]);
    const widest = Math.max(...names.map((each) => widthOf(each))) + 14;
    const short = names.every((each) => each.length <= 6), every = Math.max(1, Math.ceil((widest * names.length) / inner));
    const shown = short ? names.map((_, at) => at).filter((at) => at % (every > 2 ? Math.ceil(every / 5) * 5 : every) === 0) : [0, names.length - 1];
    for (const at of new Set(shown)) {
      const anchor = at === 0 && !short ? "start" : at === names.length - 1 && !short ? "end" : "middle";
      svg(drawing, "text", { x: anchor === "start" ? gutter : anchor === "end" ? width - 2 : x(inView[at]), y: height - 4, "text-anchor": anchor }, seen(names[at], Math.floor(inner / 16)));
    }
    if (short) svg(drawing, "text", { x: Math.max(0, gutter - 8), y: height - 4, "text-anchor": "end" }, gutter > widthOf(mark.by) + 8 ? mark.by : "");
  }
  if (!xOf && !small) numbers(host, "The numbers", () => [[mark.by, ...series.map((each) => each.label)], inView.map((at) => [typeof mark.columns === "number" ? Math.floor((at * total) / inView.length) : mark.columns[at], ...series.map((each) => several(each.values[at]).map((value) => digits(value) + mark.unit).join(" ") || "–")])]);
  return drawing;
}

function strip(mark, host, width) {
  const dots = unpacked(mark.dots), edge = 30, height = dots ? 92 : 76, base = height - 34;
  const x = scale(mark.low, mark.high, edge, width - edge, true);
  const sentence = dots ? `${mark.label}: ${dots.length} dots from ${share(Math.min(...dots))} to ${share(Math.max(...dots))}.` : `${mark.label}: ${digits(mark.dot)}, from ${digits(mark.bar[0])} to ${digits(mark.bar[1])}; ${mark.ticks.length} norms in all.`;
  const drawing = canvas(host, width, height, sentence);
  svg(drawing, "line", { class: "r-limit stroke", x1: edge, x2: width - edge, y1: base, y2: base });
  const ends = (mark.first ? [mark.low] : []).concat(mark.last ? [mark.high] : []);
  const near = (each) => ends.some((end) => end !== each && Math.abs(x(end) - x(each)) < 60);
  const ticks = ticksOf(mark.low, mark.high, true, Math.max(2, Math.floor(width / 120))).filter((each) => !near(each));
  for (const each of new Set([...ends, ...ticks])) {
    const text = each <= mark.low * 1.01 && mark.first ? mark.first : each >= mark.high * 0.99 && mark.last ? mark.last : mark.percent ? share(each) : digits(each);
    svg(drawing, "line", { class: "hair", x1: x(each), x2: x(each), y1: 4, y2: base });
    svg(drawing, "text", { x: x(each), y: base + 15, "text-anchor": "middle" }, text);
  }
  if (dots) {
    const columns = new Map();
    for (const each of dots) {
      const at = Math.round(x(Math.max(each, mark.low)) / 4) * 4, pile = columns.get(at) || 0;
      columns.set(at, pile + 1);
      if (pile < 11) svg(drawing, "circle", { class: "r-seen fill", cx: at, cy: base - 4 - 4.4 * pile, r: 2, opacity: 0.75 });
    }
  } else {
    for (const each of mark.ticks) svg(drawing, "line", { class: "r-limit stroke", x1: x(each), x2: x(each), y1: base - 10, y2: base });
    svg(drawing, "rect", { class: "wash", x: x(mark.bar[0]), width: Math.max(2, x(mark.bar[1]) - x(mark.bar[0])), y: base - 27, height: 9 });
    svg(drawing, "circle", { class: "r-seen fill", cx: x(mark.dot), cy: base - 22.5, r: 5 });
  }
  const label = widthOf(mark.label) > width ? mark.label.split(":")[0] : mark.label;
  svg(drawing, "text", { x: width / 2, y: height - 3, "text-anchor": "middle" }, label);
}

function ranges(mark, host, width) {
  const state = { all: false };
  const box = html(host, "div");
  function draw() {
    box.replaceChildren();
    const rows = state.all ? mark.rows : mark.rows.slice(0, mark.first);
    const label = (row) => seen(row.label, width < 560 ? 40 : 48);
    const longest = Math.max(...rows.map((row) => widthOf(label(row)))) + 16, above = longest > 0.36 * width, gutter = above ? 4 : longest;
    const texts = [0, 1].map((at) => Math.max(widthOf(mark.headings[at]), ...rows.map((row) => widthOf(at ? row.more : row.text))));
    const right = texts[0] + 20 + (texts[1] ? texts[1] + 14 : 0), from = gutter, to = width - right - 4;
    const x = scale(mark.low, mark.high, from, to, mark.log);
    const top = mark.lines.length || mark.headings[0] ? 24 : 8, step = above ? 36 : 22, height = top + step * rows.length + 40;
    const sentence = `${rows.length} rows: ` + rows.slice(0, 3).map((row) => `${row.label} ${row.text} ${row.more}`).join("; ");
    const drawing = canvas(box, width, height, sentence);
    for (const [at, heading] of mark.headings.entries()) if (heading) svg(drawing, "text", { x: at ? width - 2 : to + 16 + texts[0], y: 14, "text-anchor": "end" }, heading);
    const bottom = top + step * rows.length, marks = ticksOf(mark.low, mark.high, mark.log, Math.max(2, Math.floor((to - from) / 90)));
    for (const each of marks) {
      svg(drawing, "line", { class: "hair", x1: x(each), x2: x(each), y1: top, y2: bottom });
      svg(drawing, "text", { x: x(each), y: bottom + 15, "text-anchor": "middle" }, mark.percent ? share(each) : digits(each));
    }
    svg(drawing, "text", { x: (from + to) / 2, y: bottom + 33, "text-anchor": "middle" }, mark.axis);
    for (const line of mark.lines) {
      svg(drawing, "line", { class: `r-${line.role} stroke dash`, x1: x(line.at), x2: x(line.at), y1: top, y2: bottom });
      const anchor = x(line.at) > to - 90 ? "end" : "middle";
      svg(drawing, "text", { class: "halo", x: x(line.at), y: 14, "text-anchor": anchor }, line.label);
    }
    rows.forEach((row, at) => {
      const y = top + step * at + (above ? 26 : step / 2), role = row.tight ? "limit" : "example";
      svg(drawing, "text", { class: above ? "ink halo" : "ink", x: above ? 0 : gutter - 10, y: above ? y - 10 : y + 4, "text-anchor": above ? "start" : "end" }, label(row));
      if (row.limit !== null) {
        svg(drawing, "path", { class: `r-${role} stroke ${row.tight ? "" : "dash"}`, "stroke-width": 1.4, d: `M${from} ${y} H${x(row.limit)} m0 -6 v12` });
      } else svg(drawing, "line", { class: "hair", x1: from, x2: to, y1: y, y2: y });
      if (row.seen !== null) svg(drawing, "rect", { class: "r-seen fill", x: from, width: Math.max(1.5, x(row.seen) - from), y: y - 3.5, height: 7 });
      if (row.at !== null) svg(drawing, "circle", { class: `r-${role} ring`, cx: x(row.at), cy: y, r: 4.5 });
      svg(drawing, "text", { class: "ink", x: to + 16 + texts[0], y: y + 4, "text-anchor": "end" }, row.text);
      if (row.more) svg(drawing, "text", { x: width - 2, y: y + 4, "text-anchor": "end" }, row.more);
    });
    if (mark.rows.some((row) => row.limit !== null && !row.tight)) html(box, "p", { class: "soft" }, "A dashed magenta bracket holds for every input, but is not tight.");
    if (mark.rows.length > mark.first) {
      html(box, "button", { type: "button", class: "more", "aria-pressed": String(state.all), on: { click: () => { state.all = !state.all; draw(); box.querySelector("button").focus(); } } }, state.all ? `Show ${mark.first}` : `Show all ${mark.rows.length}`);
    }
    numbers(box, "The numbers", () => [["", mark.headings[0] || "limit", mark.headings[1] || mark.axis, "norm"], mark.rows.map((row) => [row.label, row.text, row.more || digits(row.at), row.norm || "–"])]);
  }
  draw();
}

function grid(mark, host, width) {
  const gutter = Math.max(...mark.rows.map((each) => widthOf(`${mark.row_name} ${each}`))) + 10;
  const step = Math.min(34, (width - gutter) / mark.columns.length), tall = Math.min(22, Math.max(14, step)), height = tall * mark.rows.length + 36;
  const most = Math.max(1, ...mark.counts.flat().map((each) => each || 0)), total = mark.counts.flat().reduce((sum, each) => sum + (each || 0), 0);
  const drawing = canvas(host, width, height, `${total} ${mark.what}, by ${mark.row_name} and ${mark.column_name}.`);
  mark.counts.forEach((row, down) => {
    svg(drawing, "text", { x: gutter - 8, y: tall * (down + 0.5) + 4, "text-anchor": "end" }, down ? mark.rows[down] : mark.rows[0] === "" ? "" : `${mark.row_name} ${mark.rows[0]}`);
    row.forEach((value, at) => {
      if (value === null) return;
      svg(drawing, "rect", { class: "hair", x: gutter + at * step + 0.5, y: down * tall + 0.5, width: step - 2, height: tall - 2, rx: 2, fill: value ? "var(--warning-fill)" : "var(--wash)", "fill-opacity": value ? 0.25 + (0.5 * value) / most : 1 });
      if (value) svg(drawing, "text", { class: "ink", x: gutter + (at + 0.5) * step - 0.5, y: tall * (down + 0.5) + 4, "text-anchor": "middle" }, String(value));
    });
  });
  const every = Math.max(1, Math.ceil((Math.max(...mark.columns.map((each) => widthOf(seen(each, 16)))) + 8) / step));
  mark.columns.forEach((each, at) => {
    if (at % (every > 2 ? Math.ceil(every / 5) * 5 : every) === 0) svg(drawing, "text", { x: gutter + (at + 0.5) * step, y: tall * mark.rows.length + 16, "text-anchor": every > 4 && !at ? "start" : "middle" }, seen(each, 16));
  });
  svg(drawing, "text", { x: gutter, y: height - 2 }, mark.column_name);
  numbers(host, "The numbers", () => [[mark.row_name, ...mark.columns.map((each) => `${mark.column_name} ${each}`)], mark.counts.map((row, at) => [mark.rows[at], ...row.map((each) => (each === null ? "–" : String(each)))])]);
}

function text(mark, host) {
  const inText = mark.items.some((item) => item.before || item.after), box = html(host, "div");
  let all = false;
  function draw() {
    box.replaceChildren();
    if (!mark.items.length) { html(box, "p", {}, mark.nothing); return; }
    const list = html(box, "ul", { class: inText ? "framed" : "chips" });
    for (const item of all ? mark.items : mark.items.slice(0, mark.first)) {
      if (inText) {
        html(list, "li", {}, html(null, "bdi", {}, item.before ? "…" + seen(item.before, 200).trimStart() : ""), html(null, "mark", {}, seen(item.token, 80) || "(empty)"), html(null, "bdi", {}, seen(item.after, 120)), html(null, "small", {}, seen(item.note, 200)));
      } else html(list, "li", { class: "chip", title: item.note }, seen(item.token, 80) || "(empty)", html(null, "span", { class: "hidden" }, item.note ? `: ${seen(item.note, 80)}` : ""));
    }
    if (mark.items.length > mark.first) html(box, "button", { type: "button", class: "more", "aria-pressed": String(all), on: { click: () => { all = !all; draw(); box.querySelector("button.more").focus(); } } }, all ? `Show ${mark.first}` : `Show all ${mark.items.length}`);
  }
  draw();
}

function verdicts(mark, host, width) {
  const gutter = 110, count = Math.max(...mark.rows.map((row) => row[1].length));
  const each = Math.max(4, Math.min(24, (width - gutter) / count - 3)), across = each > 4 ? count : Math.max(1, Math.floor((width - gutter) / (each + 3)));
  for (const [label, cells] of mark.rows) {
    const said = mark.words.map(([state, word]) => [cells.filter((cell) => cell.state === state).length, word]).filter(([many]) => many).map(([many, word]) => `${many} ${word}`);
    const row = html(host, "div", { class: "verdicts", role: "img", "aria-label": `${label}: ${said.join(", ")}`, style: `grid-template-columns:${gutter - 6}px repeat(${Math.min(across, count)}, ${each}px);margin-bottom:3px` });
    html(row, "span", {}, label);
    cells.forEach((cell, at) => {
      if (at && at % across === 0) html(row, "span");
      html(row, "i", { class: cell.state, title: `${seen(cell.norm, 120)}: ${seen(cell.reason, 300)}` });
    });
  }
  const used = mark.words.filter(([state]) => mark.rows.some((row) => row[1].some((cell) => cell.state === state)));
  const legend = html(host, "p", { class: "legend" });
  for (const [state, word] of used) html(legend, "span", {}, html(null, "i", { class: state }), word);
  numbers(host, "Every verdict and its reason", () => [["norm", ...mark.rows.flatMap((row) => [row[0], "because"])], mark.rows[0][1].map((cell, at) => [cell.norm, ...mark.rows.flatMap((row) => [mark.words.find(([state]) => state === row[1][at].state)[1], row[1][at].reason])])]);
}

// A table that sorts and filters; brief columns first.
function table(mark, host) {
  let sorted = null, down = false, all = false, wanted = "";
  const bar = html(host, "div", { class: "table-bar" });
  const status = html(null, "span", { role: "status" });
  if (mark.search) {
    html(bar, "label", {}, `${mark.search} `, html(null, "input", { type: "search", autocomplete: "off", spellcheck: "false", on: { input: (event) => { wanted = event.target.value.toLowerCase(); fill(); } } }));
  }
  if (mark.headings.some((each) => !each[3])) html(bar, "button", { type: "button", "aria-pressed": "false", on: { click: (event) => { all = !all; event.target.setAttribute("aria-pressed", String(all)); heads(); fill(); } } }, "All columns");
  bar.append(status);
  const box = html(host, "div", { class: "scroller", tabindex: 0, role: "region", "aria-label": "Table" });
  const made = html(box, "table"), head = html(made, "thead"), body = html(made, "tbody");
  const columns = () => mark.headings.map((_, at) => at).filter((at) => all || mark.headings[at][3] || !mark.headings.some((each) => each[3]));
  function heads() {
    head.replaceChildren();
    const row = html(head, "tr");
    for (const at of columns()) {
      const [heading, meaning, numeric] = mark.headings[at];
      html(row, "th", { scope: "col", class: numeric ? "numeric" : null, "aria-sort": sorted !== at ? "none" : down ? "descending" : "ascending" }, html(null, "button", { type: "button", title: meaning, on: { click: () => { down = sorted === at ? !down : false; sorted = at; heads(); fill(); head.querySelectorAll("button")[columns().indexOf(at)].focus(); } } }, heading));
    }
  }
  function fill() {
    body.replaceChildren();
    const rows = mark.rows.map((row, at) => [row, at]).filter(([row]) => row[0][0].toLowerCase().includes(wanted));
    if (sorted !== null) rows.sort(([one], [other]) => {
      const a = one[sorted][1], b = other[sorted][1];
      if (a === null || b === null) return (a === null) - (b === null);
      const order = typeof a === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
      return down ? -order : order;
    });
    for (const [row, number] of rows) {
      const line = html(body, "tr", { "data-row": number });
      columns().forEach((at, place) => {
        const shown = seen(row[at][0], 120), numeric = mark.headings[at][2];
        if (place) html(line, "td", { class: numeric ? "numeric" : null }, shown);
        else html(line, "th", { scope: "row" }, mark.links ? html(null, "a", { href: `#norm=${encodeURIComponent(well(data.norms[number].name))}&at=norm` }, shown) : shown);
      });
    }
    status.textContent = `${rows.length} of ${mark.rows.length}`;
  }
  heads();
  fill();
}
// A text without halves of surrogate pairs, which an address can't hold.
const well = (name) => name.replace(/[\ud800-\udfff]/gu, "\ufffd");
