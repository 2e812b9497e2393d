// The second tab: labelled points of a line, creased by the LayerNorms of a network that `normscope memorize` found.
const FLAT = [[1, -1, 0].map((v) => v / Math.sqrt(2)), [1, 1, -2].map((v) => v / Math.sqrt(6))]; // the plane of mean 0
const onCircle = ([x, y], row) => Math.sqrt(3) * (x * dot(FLAT[0], row) + y * dot(FLAT[1], row)) + row[3]; // a Linear there
const inPlane = (v) => FLAT.map((axis) => dot(axis, v));
const readNet = (net) => ({
  ...net,
  samples: count(net.labels.length),
  layers: net.layers.map((layer) => layer.map((row) => (net.single ? row.map(Math.fround) : row)))
});
const netWords = (net) =>
  `No two neighbours have the same class. The command normscope memorize found these ${depthOf(net)} LayerNorms of ` +
  `width 3, and certified that every point gets its class. ${net.least ? `No network that reads this line has fewer than ${net.least}.` : ""}`;
const depthOf = (net) => net.layers.length - 1;

// One sample on its way: itself, then what each Linear and each LayerNorm writes, then a score for each class.
function passage(net, sample) {
  const norm = { project: true, scale: true, gain: [1, 1, 1], bias: [0, 0, 0], eps: net.eps, groups: 1 };
  const stops = [[sample]];
  net.layers.forEach((layer, i) => {
    stops.push(layer.map((row) => dot(row.slice(0, -1), stops.at(-1)) + row.at(-1)));
    if (i < depthOf(net)) stops.push(scale(project(stops.at(-1), norm), norm));
  });
  return stops;
}

const winnerOf = (scores) => scores.indexOf(highest(scores));
function leadOf(scores) {
  const [first, second] = [...scores].sort((a, b) => b - a);
  return first - second;
}

// Places from 0 to 1 on the line that the next layer reads; after the last, the class that wins and how clearly.
function placesOf(net, stops) {
  return count(depthOf(net) + 1).map((layer) => {
    let where = stops.map((each) => inPlane(each[2 * layer + 1])).map(([u, v]) => u / v);
    if (layer === depthOf(net)) {
      const most = highest(stops.map((each) => leadOf(each.at(-1))));
      where = stops.map((each) => winnerOf(each.at(-1)) + (0.5 * leadOf(each.at(-1))) / most);
    }
    const [low, high] = [lowest(where), highest(where)];
    return where.map((v) => (v - low) / (high - low || 1));
  });
}

function measureCreases(net) {
  const stops = net.samples.map((x) => passage(net, x));
  const places = placesOf(net, stops);
  const along = places.map((row) =>
    count(row.length)
      .sort((i, j) => row[i] - row[j])
      .map((i) => net.labels[i])
  );
  return {
    ...{ samples: net.samples, labels: net.labels, stops, places, labels_along: along },
    runs: along.map((row) => row.filter((label, i) => i === 0 || label !== row[i - 1]).length),
    winners: stops.map((each) => winnerOf(each.at(-1)))
  };
}

// What is drawn of a stop, in the plane of the LayerNorms: samples, the line between them, the image of the circle.
// Parts of the line that lie on each other on the circle are drawn apart by so much: each turn goes inwards.
function frameOf(net, stop, line, samples, apart) {
  const curve = line.map((each) => inPlane(each[stop]));
  if (stop % 2 === 0) {
    const angles = curve.map(([u, v]) => Math.atan2(v, u));
    const steps = angles.map((a, i) => (i ? Math.sin(a - angles[i - 1]) : 0));
    let [turns, ahead] = [0, 0];
    const strand = steps.map((step) => {
      if (step * ahead < -1e-15) turns++;
      if (Math.abs(step) > 1e-9) ahead = step;
      return 1 - apart * turns;
    });
    const out = (points, of) => points.map((p, i) => times(unit(p), of(i)));
    const nearestOn = (i) => strand[Math.round(samples[i].share * (line.length - 1))];
    return {
      curve: out(curve, (i) => strand[i]),
      points: out(
        samples.map(({ stops }) => inPlane(stops[stop])),
        nearestOn
      )
    };
  }
  const size = highest(curve.flatMap(([x, y]) => [Math.abs(x) / 1.55, y / 1.15])); // to fit: only directions count
  const layer = net.layers[(stop - 1) / 2];
  const image = (p) => inPlane(layer.map((row) => onCircle(p, row)));
  const fit = (points) => points.map((p) => times(p, 1 / size));
  return {
    curve: fit(curve),
    points: fit(samples.map(({ stops }) => inPlane(stops[stop]))),
    ellipse: fit(stop > 1 ? around(96).map(image) : [])
  };
}

// At time k the samples have passed k LayerNorms and the linear map after it; half-way between, they are on the circle.
function drawPlane(net, now, t, width) {
  const zoom = Math.min(width / 3.3, 225);
  const height = 1.85 * zoom;
  const center = [width / 2, 1.35 * zoom]; // all samples stay in the half above it
  const at = ([x, y]) => [center[0] + zoom * x, center[1] - zoom * y];
  const [low, high] = [lowest(net.samples), highest(net.samples)];
  const line = count(481).map((i) => passage(net, low + ((high - low) * i) / 480));
  const samples = now.stops.map((stops) => ({ stops, share: (stops[0][0] - low) / (high - low) }));
  const from = Math.min(Math.floor(2 * t), 2 * depthOf(net) - 1);
  const way = 2 * t - from;
  const frame = (f) => frameOf(net, Math.min(f + 1, 2 * depthOf(net)), line, samples, f < 2 * depthOf(net) ? 0.07 : 0);
  const [before, after] = [frame(from), frame(from + 1)];
  const mix = (a, b) => a.map((p, i) => p.map((v, k) => v + (b[i][k] - v) * way));
  const points = mix(before.points, after.points);
  const parts = [path(around(96).map(at), "limit", true), disc("center", ...center, 2.5)];
  for (const [ellipse, opacity] of [
    [before.ellipse, 1 - way],
    [after.ellipse, way]
  ]) {
    if (ellipse && ellipse.length && opacity > 0) parts.push(faded(opacity, path(ellipse.map(at), "hull", true)));
  }
  const away = from % 2 ? way : 1 - way; // how far the samples are from being on the circle
  if (t < depthOf(net))
    parts.push(
      faded(
        0.2 + 0.8 * away,
        joined(points, (p) => path([at([0, 0]), at(p)], "trail"))
      )
    );
  parts.push(path(mix(before.curve, after.curve).map(at), "folded"));
  const reading = clamp(2 * (t - depthOf(net)) + 1, 0, 1);
  if (reading) parts.push(faded(reading, boundaries(net, at)));
  parts.push(joined(points, (p, i) => markOf(net.labels[i], ...at(p))));
  return { height, content: parts.join("") };
}

// Where the two highest scores are equal, in the plane of the last LayerNorm.
function boundaries(net, at) {
  const scores = (p) => net.layers.at(-1).map((row) => onCircle(p, row));
  const classes = count(net.classes);
  const pairs = classes.flatMap((i) => classes.slice(i + 1).map((j) => [i, j]));
  return pairs
    .map(([i, j]) => {
      const gap = (p) => scores(p)[i] - scores(p)[j];
      const slope = [gap([1, 0]) - gap([0, 0]), gap([0, 1]) - gap([0, 0])];
      const foot = times(slope, -gap([0, 0]) / dot(slope, slope));
      const along = unit([-slope[1], slope[0]]);
      const line = count(241).map((k) => foot.map((v, a) => v + ((k - 120) / 50) * along[a]));
      const wins = (p) => length(p) < 1.7 && highest(scores(p)) < Math.max(scores(p)[i], scores(p)[j]) + 1e-9;
      return path(line.filter(wins).map(at), "boundary");
    })
    .join("");
}

// Rows of places, one for each LayerNorm that is passed, and threads between them.
function drawRows(net, now, t, width) {
  const [left, right, top, gap] = [100, 66, 18, 46];
  const x = (v) => left + v * (width - left - right);
  const y = (row) => top + row * gap;
  const parts = [];
  now.places.forEach((row, k) => {
    const name = k === 0 ? "the line" : k < depthOf(net) ? `LayerNorm ${k}` : "classes";
    parts.push(
      path(
        [
          [x(0), y(k)],
          [x(1), y(k)]
        ],
        "axis"
      ),
      text(0, y(k) + 4, name, k <= t ? "row" : "row later")
    );
    if (k > Math.ceil(t)) return;
    const shown =
      k === 0 ? row : row.map((v, i) => v * (1 - Math.max(0, k - t)) + now.places[k - 1][i] * Math.max(0, k - t));
    const rise = Math.max(0, k - t) * gap;
    if (k)
      parts.push(
        row
          .map((_, i) =>
            path(
              [
                [x(now.places[k - 1][i]), y(k - 1)],
                [x(shown[i]), y(k) - rise]
              ],
              `thread-${net.labels[i]}`
            )
          )
          .join("")
      );
    if (k <= t) parts.push(text(width, y(k) + 4, `${now.runs[k]} runs`, "row", "end"));
    parts.push(joined(shown, (v, i) => markOf(net.labels[i], x(v), y(k) - rise, 4.5)));
  });
  return { height: y(depthOf(net)) + 18, content: parts.join("") };
}

function creaseCaption(net, now, t) {
  const total = net.samples.length;
  const layer = Math.ceil(t);
  if (t === 0)
    return [
      `${total} points of a line, in ${net.classes} classes`,
      `The first linear map lays the line into the plane, beside the center. Seen from the center the class changes ${now.runs[0] - 1} times: ${now.runs[0]} runs. Another linear map would not help: a line stays a line.`
    ];
  if (layer - t >= 0.5)
    return [
      `LayerNorm ${layer}: everything goes to the circle`,
      `Each point moves along its ray from the center. ${layer === 1 ? "The line becomes an arc: it is bent now." : "What lay behind each other now lies together; it is drawn a little apart."}`
    ];
  if (layer === depthOf(net))
    return [
      "Read off the classes",
      `The last linear map gives each class a score. Dashed: two scores are equal. ${now.winners.filter((w, i) => w === net.labels[i]).length} of ${total} points are on the side of their class.`
    ];
  return [
    `Linear map ${layer + 1}: the circle becomes an ellipse beside the center`,
    `Seen from the center, one part of the line now lies behind the other: it is creased. ${now.runs[layer - 1]} runs become ${now.runs[layer]}. Only directions from the center count, so it is drawn to fit.`
  ];
}
