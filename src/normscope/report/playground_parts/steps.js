// The first tab: inputs on their way through the steps of a norm. `measure` computes, the rest shows.
const POINTS = 14;
const STEPS = ["Input", "Project", "Scale", "Gain", "Bias"];
const KINDS = {
  layernorm: { name: "LayerNorm", project: true, scale: true, affine: true },
  lng: { name: "LN-G: LayerNorm in groups", project: true, scale: true, affine: true },
  rmsnorm: { name: "RMSNorm: no projection", project: false, scale: true, affine: true },
  projection: { name: "Projection only", project: true, scale: false, affine: false },
  scaling: { name: "Scaling only", project: false, scale: true, affine: false },
  affine: { name: "Gain and bias only", project: false, scale: false, affine: true }
};
const skips = (state, step) => {
  const kind = KINDS[state.kind];
  return [false, !kind.project, !kind.scale, !kind.affine, !kind.affine][step];
};
const divisions = (state) =>
  state.kind === "affine"
    ? [1]
    : count(state.channels)
        .map((i) => i + 1)
        .filter((g) => state.channels % g === 0)
        .filter((g) => !KINDS[state.kind].project || state.channels / g > 1);

// Inputs of a seed: sums of twelve uniform numbers, so that every browser finds the same ones.
function cloud(seed, channels) {
  let state = Math.imul(seed + 1, 0x9e3779b1) >>> 0;
  const uniform = () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
  const bell = () => sum(count(12).map(uniform)) - 6;
  return count(POINTS).map(() => count(channels).map(() => Math.round((1.1 * bell() + 0.45) * 1000) / 1000));
}

function measure(state) {
  const { channels, t } = state;
  const kind = KINDS[state.kind];
  const own = (values, plain) => count(channels).map((i) => (kind.affine ? values[i] : plain));
  const norm = { project: kind.project, scale: kind.scale, gain: own(state.gain, 1), bias: own(state.bias, 0) };
  Object.assign(norm, { eps: state.eps, groups: state.groups });
  const inputs = state.inputs || cloud(state.seed, channels);
  const stops = inputs.map((x) => stopsOf(x, norm));
  const keys = stops.map((each) => between(each, t));
  const found = verdicts(keys);
  const alike = equalQuery(norm, t);
  const base = alike || unit(keys[0].map(() => 1));
  const flattest = base.map(Math.abs).indexOf(lowest(base.map(Math.abs)));
  const aside = unit(
    minus(
      base.map((_, i) => Number(i === flattest)),
      times(base, base[flattest])
    )
  );
  const angle = (state.tilt * Math.PI) / 180;
  const followed = found[state.follow];
  const aimed = state.aim && followed.selectable;
  const query = aimed ? followed.query : base.map((v, i) => Math.cos(angle) * v + Math.sin(angle) * aside[i]);
  const scores = keys.map((key) => dot(query, key));
  const sharpness = aimed ? clamp(3 / (followed.margin || 1), 2, 1e4) : 2;
  const shares = scores.map((v) => Math.exp(sharpness * (v - highest(scores))));
  return {
    ...{ norm, inputs, stops, keys, verdicts: found, semi_axes: semiAxes(norm), equal_query: alike, query, scores },
    attention: shares.map((v) => v / sum(shares))
  };
}
const lostIn = (found) => found.filter((each) => !each.selectable).length;

// How many keys are lost at a whole step; remembered while only the time changes.
let remembered = ["", {}];
function lostAt({ norm, inputs, stops }, step) {
  const question = JSON.stringify([norm, inputs]);
  if (remembered[0] !== question) remembered = [question, {}];
  return (remembered[1][step] ??= lostIn(verdicts(stops.map((each) => each[step]))));
}

// ---- the picture: blocks of two or three channels, each drawn by itself

function blocksOf({ channels, groups }) {
  const size = channels === 3 ? 3 : channels === 4 || groups === 3 ? 2 : 3;
  return count(channels / size).map((b) => count(size).map((i) => b * size + i));
}

// Where a block is on the page, and how its coordinates become those of the page.
function panelsOf(state, now, width) {
  const blocks = blocksOf(state);
  const columns = width < 520 ? 1 : blocks.length;
  const rows = blocks.length / columns;
  const height = rows > 1 ? 270 : clamp(0.9 * width, 270, blocks.length > 1 ? 380 : 500);
  const cut = (v, block) => length(block.map((i) => v[i]));
  const reach = Math.max(2.4, ...now.stops.flat().flatMap((v) => blocks.map((block) => cut(v, block))));
  const heading = blocks.length > 1 ? 32 : 0; // room for the name of each block
  const zoom = Math.min(width / columns, height - heading) / (2.2 * reach);
  const [cy, sy, cp, sp] = [Math.cos(state.yaw), Math.sin(state.yaw), Math.cos(state.pitch), Math.sin(state.pitch)];
  const turned = [
    [cy, -sy, 0],
    [sp * sy, sp * cy, cp],
    [cp * sy, cp * cy, -sp]
  ];
  return blocks.map((block, b) => {
    const rowsOf =
      block.length === 3
        ? turned
        : [
            [1, 0],
            [0, 1],
            [0, 0]
          ];
    const middle = [(width / columns) * ((b % columns) + 0.5), height * (Math.floor(b / columns) + 0.5) + heading / 2];
    const at = (v) => {
      const [x, y, depth] = rowsOf.map((row) => dot(row, v));
      return [middle[0] + zoom * x, middle[1] - zoom * y, depth];
    };
    return {
      block,
      at,
      rows: rowsOf,
      zoom,
      middle,
      reach,
      half: width / columns / 2,
      top: middle[1] - (height + heading) / 2,
      height: rows * height
    };
  });
}

const px = (v) => v.toFixed(1);
const path = (points, kind, closed) =>
  `<path class="${kind}" d="M${points.map(([x, y]) => px(x) + " " + px(y)).join("L")}${closed ? "Z" : ""}"/>`;
const disc = (kind, x, y, r) => `<circle class="${kind}" cx="${px(x)}" cy="${px(y)}" r="${px(r)}"/>`;
// A disc, a square or a triangle: colour never speaks alone.
function markOf(label, x, y, r = 5) {
  if (label === 0) return disc("mark-0", x, y, r);
  if (label === 1)
    return path(
      [
        [x - r, y - r],
        [x + r, y - r],
        [x + r, y + r],
        [x - r, y + r]
      ],
      "mark-1",
      true
    );
  return path(
    [
      [x, y - r - 1],
      [x + r + 1, y + r - 1],
      [x - r - 1, y + r - 1]
    ],
    "mark-2",
    true
  );
}
const faded = (opacity, content) => `<g opacity="${opacity.toFixed(2)}">${content}</g>`;
const text = (x, y, words, kind, anchor = "start") =>
  `<text class="${kind}" x="${px(x)}" y="${px(y)}" text-anchor="${anchor}">${words}</text>`;

// The outline of a ball of the group's directions, seen in this block: for a block that is a whole projected group,
// the circle itself; for a block that is part of a larger group, the shadow of a sphere of more dimensions.
function outline(panel, now, t, factor) {
  const { block, rows, at } = panel;
  const size = block.length;
  const whole = groupSize(now.norm);
  const kept = now.norm.project ? 1 - Math.sqrt(Math.max(0, 1 - size / whole)) : 0; // of the part along (1, …, 1)
  const gain = block.map((i) => gainAt(now.norm, t)[i]);
  const bias = block.map((i) => biasAt(now.norm, t)[i]);
  const radius = factor * Math.sqrt(whole);
  const flattened = (v) => v.map((x) => radius * (x - (kept * sum(v)) / size));
  const carried = (v) => flattened(v).map((x, i) => x * gain[i]);
  const points = around(96).map(([cos, sin]) => {
    const pulled = flattened(gain.map((g, k) => g * (cos * rows[0][k] + sin * rows[1][k])));
    const v = length(pulled) > 1e-12 ? carried(unit(pulled)) : gain.map(() => 0);
    return at(v.map((x, k) => x + bias[k]));
  });
  const ring = (a, b) =>
    around(48).map(([cos, sin]) =>
      at(carried(count(size).map((k) => cos * (k === a) + sin * (k === b))).map((x, k) => x + bias[k]))
    );
  return { points, rings: size === 3 && kept < 1 ? [ring(0, 1), ring(1, 2), ring(0, 2)] : [] };
}

function box(panel, now, t) {
  const { block, at } = panel;
  const gain = gainAt(now.norm, t);
  const bias = biasAt(now.norm, t);
  const corner = (bits) => at(block.map((c, k) => ((bits >> k) & 1 ? 1 : -1) * gain[c] + bias[c]));
  const corners = count(2 ** block.length);
  const edges = corners.flatMap((i) => block.map((_, k) => [i, i ^ (1 << k)])).filter(([i, j]) => i < j);
  return joined(edges, ([i, j]) => path([corner(i), corner(j)], "limit"));
}

function drawPanel(panel, state, now) {
  const { block, at, reach, middle, zoom, half } = panel;
  const { t } = state;
  const cut = (v) => block.map((i) => v[i]);
  const parts = [];
  const group = groupSize(now.norm);
  if (now.norm.project && group === block.length) {
    const plane = outline(panel, now, t, (0.92 * reach) / Math.sqrt(group)).points;
    parts.push(faded(0.3 + 0.7 * clamp(t, 0, 1), path(plane, block.length === 3 ? "plane" : "plane line", true)));
  }
  const axes = block.map((c, k) => [c, block.map((_, i) => reach * (i === k))]);
  axes.forEach(([, end]) => parts.push(path([at(times(end, -1)), at(end)], "axis")));
  if (now.norm.scale) {
    const limit = group < block.length ? null : outline(panel, now, t, 1);
    const rings = limit && joined(limit.rings, (each) => path(each, "limit thin"));
    const shape = limit ? path(limit.points, "limit", true) + rings : box(panel, now, t);
    parts.push(faded(0.2 + 0.8 * clamp(t - 1, 0, 1), shape));
  }
  if (now.edges) parts.push(joined(now.edges, ([i, j]) => path([at(now.keys[i]), at(now.keys[j])], "hull")));
  const from = Math.floor(t);
  if (t > from) {
    const trail = (stops, i) => path([at(cut(stops[from])), at(cut(now.keys[i]))], "trail");
    parts.push(joined(now.stops, trail));
  }
  const home = cut(biasAt(now.norm, t));
  const along = (v, factor) => at(home.map((b, k) => b + factor * reach * v[k]));
  const normal = now.equal_query && cut(now.equal_query);
  if (normal && length(normal)) parts.push(path([along(unit(normal), -0.9), along(unit(normal), 0.9)], "normal"));
  const query = cut(now.query);
  const [tail, head] = [along(query, 0), along(query, 0.9)];
  const turn = Math.atan2(head[1] - tail[1], head[0] - tail[0]);
  const wing = (side) => [head[0] - 9 * Math.cos(turn + side), head[1] - 9 * Math.sin(turn + side)];
  if (Math.hypot(head[0] - tail[0], head[1] - tail[1]) > 3) {
    parts.push(path([tail, head], "query"), path([head, wing(0.42), wing(-0.42)], "query tip", true));
  }
  axes.forEach(([c, end]) => {
    const tip = at(times(end, 1.02));
    const x = clamp(tip[0] + 4, middle[0] - half, middle[0] + half - 66);
    parts.push(text(x, tip[1] + 4, `channel ${c + 1}`, "name"));
  });
  const depths = now.keys.map((key, i) => [at(cut(key)), i]).sort((a, b) => b[0][2] - a[0][2]);
  for (const [[x, y, depth], i] of depths) {
    const r = 5.4 * (1 - clamp((0.25 * depth) / reach, -0.25, 0.25));
    const ring = i === state.follow ? disc("followed", x, y, r + 5) : "";
    parts.push(`<g data-key="${i}">${markOf(Number(!now.verdicts[i].selectable), x, y, r)}${ring}</g>`);
  }
  const title = blocksOf(state).length > 1 ? blockTitle(block, group) : "";
  if (title) parts.push(text(middle[0], panel.top + 14, title, "title", "middle"));
  const width = 7.6 * queryName(state, now).length;
  const right = clamp(head[0] + 8, 0, 2 * half - width);
  if (blocksOf(state).length === 1) parts.push(text(right, head[1] - 8, queryName(state, now), "query-name"));
  return parts.join("");
}

function blockTitle(block, group) {
  const channels = `channels ${block[0] + 1} to ${block[block.length - 1] + 1}`;
  if (group === block.length) return `group ${block[0] / group + 1}: ${channels}`;
  return group > block.length ? `${channels}, a shadow` : channels;
}

function queryName(state, now) {
  if (state.aim && now.verdicts[state.follow].selectable) return `selects key ${state.follow + 1}`;
  if (state.tilt) return "query";
  if (!now.norm.project) return now.equal_query ? "query along the dead channel" : "query";
  if (state.t < 1) return "(1, 1, 1), soon the normal";
  const dead = gainAt(now.norm, state.t).some((g) => Math.abs(g) < 1e-12);
  return state.t <= 2 ? "query along the normal" : dead ? "query along the dead channel" : "query along 1/gain";
}
