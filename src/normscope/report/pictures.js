// The two pictures of a norm's outputs, and their share on each axis.

let chosenPlane = null;

function plane(mark, host, width) {
  const points = unpacked(mark.points), distances = unpacked(mark.distances), stride = 2 * mark.pairs.length;
  const bar = html(host, "div", { class: "choice", role: "group", "aria-label": "Two axes" }, html(null, "span", {}, "Two axes:"));
  const box = html(host, "div", { class: "pictures" }), note = html(host, "p", { class: "notes", role: "status" });
  const wanted = mark.pairs.findIndex((each) => each.name.toLowerCase() === chosenPlane);
  let at = wanted >= 0 ? wanted : points ? mark.pairs.length - 1 : 0;
  const buttons = mark.pairs.map((each, place) => html(bar, "button", { type: "button", "aria-pressed": "false", on: { click: () => { at = place; chosenPlane = each.name.toLowerCase(); toAddress({ plane: chosenPlane }); draw(); } } }, each.name));
  function draw() {
    buttons.forEach((button, place) => button.setAttribute("aria-pressed", String(place === at)));
    box.replaceChildren();
    const pair = mark.pairs[at], kinds = points ? ["true", "shadow"] : ["outline"];
    for (const kind of kinds) {
      const size = Math.min(340, kinds.length > 1 && width > 560 ? width / 2 - 30 : width - 10), full = size / 2 - 24;
      const ratio = pair.axes[0].length / pair.axes[1].length, apart = ratio > 3.5 || ratio < 1 / 3.5;
      const rx = apart || ratio >= 1 ? full : full * ratio, ry = apart || ratio <= 1 ? full : full / ratio;
      const picture = html(box, "div", { class: "picture" });
      const words = { true: "true distance from the center", shadow: "shadow on the two axes", outline: "outline in the plane of the two axes" }[kind];
      const drawing = canvas(picture, size, size, `${words}: ${pair.axes.map((axis) => `${axis.label} ${axis.shown}`).join(" and ")}. ${pair.note}`);
      const middle = size / 2;
      svg(drawing, "ellipse", { class: "r-limit stroke", "stroke-width": 1.5, cx: middle, cy: middle, rx, ry, style: kind === "true" ? null : "fill:var(--wash)" });
      svg(drawing, "path", { class: "hair", d: `M${middle - rx} ${middle}H${middle + rx}M${middle} ${middle - ry}V${middle + ry}` });
      if (kind === "shadow" && mark.even) svg(drawing, "ellipse", { class: "r-limit stroke dash", cx: middle, cy: middle, rx: rx * mark.even, ry: ry * mark.even });
      const spot = [];
      for (let point = 0; points && point < mark.count; point++) {
        let u = points[point * stride + 2 * at], v = points[point * stride + 2 * at + 1];
        if (kind === "true") {
          const length = Math.hypot(u, v) || 1, radius = 1 - distances[point];
          u *= radius / length; v *= radius / length;
        }
        spot.push([middle + rx * u, middle - ry * v]);
        svg(drawing, "circle", { class: "r-seen fill", cx: spot[point][0].toFixed(1), cy: spot[point][1].toFixed(1), r: 2.4, opacity: 0.6 });
      }
      svg(drawing, "text", { x: middle, y: middle + ry + 16, "text-anchor": "middle" }, seen(`→ ${pair.axes[0].label}, ${pair.axes[0].shown}`, 44));
      svg(drawing, "text", { x: middle, y: middle - ry - 8, "text-anchor": "middle" }, seen(`↑ ${pair.axes[1].label}, ${pair.axes[1].shown}`, 44));
      if (kind === "true") svg(drawing, "text", { class: "halo", x: middle + 6, y: middle + 15 }, "center");
      if (kind === "shadow") for (const [point, label] of pair.labels) {
        const [x, y] = spot[point], end = x > middle;
        svg(drawing, "circle", { class: "r-seen ring", cx: x, cy: y, r: 5, style: "fill:none" });
        svg(drawing, "text", { class: "halo strong", x: x + (end ? -9 : 9), y: Math.abs(y - middle) < 14 ? y + 18 : y < 40 ? y + 16 : y + 4, "text-anchor": end ? "end" : "start" }, seen(label, 26));
      }
      html(picture, "b", {}, words);
      if (apart) html(picture, "small", {}, `each axis stretched to the same length: one is really ${digits(Math.max(ratio, 1 / ratio))} times as long`);
      else html(picture, "small", {}, "both axes to the same scale");
    }
    note.textContent = pair.note;
  }
  draw();
}

function shares(mark, host, width) {
  const reach = unpacked(mark.reach), count = reach.length, gutter = 62;
  const x = (at) => gutter + ((width - gutter - 6) * (at + 0.5)) / count, wide = Math.max(0.8, (width - gutter) / count - 0.4);
  const known = reach.filter((each) => each > 0), low = Math.min(...known) / 1.2, high = Math.max(...known) * 1.2;
  const top = canvas(host, width, 112, `Reach of ${mark.axes} axes: from ${digits(high / 1.2)} down to ${digits(low * 1.2)}.`);
  const y = scale(low, high, 104, 22, true);
  svg(top, "text", { class: "strong", x: gutter, y: 13 }, "How far each axis reaches");
  for (const each of ticksOf(low, high, true, 4)) {
    svg(top, "line", { class: "hair", x1: gutter, x2: width, y1: y(each), y2: y(each) });
    svg(top, "text", { x: gutter - 6, y: y(each) + 4, "text-anchor": "end" }, digits(each));
  }
  svg(top, "path", { class: "r-limit stroke", "stroke-width": 2, d: "M" + reach.map((each, at) => `${x(at).toFixed(1)} ${y(each).toFixed(1)}`).join("L") });
  const median = unpacked(mark.median), upper = unpacked(mark.high), most = unpacked(mark.largest);
  if (!median) { html(host, "p", { class: "soft" }, "longest axis at the left, shortest at the right"); return; }
  const floor = Math.min(mark.even / 30, ...median.filter((each) => each > 0).map((each) => each / 1.5)), height = 252;
  const bottom = Math.max(floor, 1e-9);
  const z = scale(bottom, 1, height - 20, 38, true);
  const drawing = canvas(host, width, height, `Share of a token's squared length on each of ${mark.axes} axes. ${mark.labels.join("; ")} at most.`);
  svg(drawing, "text", { class: "strong", x: gutter, y: 13 }, "Share of a token’s squared length on that axis");
  for (const each of ticksOf(bottom, 1, true, 5)) {
    svg(drawing, "line", { class: "hair", x1: gutter, x2: width, y1: z(each), y2: z(each) });
    svg(drawing, "text", { x: gutter - 6, y: z(each) + 4, "text-anchor": "end" }, each === 1 ? "all" : share(each));
  }
  const group = svg(drawing, "g");
  median.forEach((each, at) => {
    const from = z(Math.max(each, bottom)), to = z(Math.max(upper[at], bottom));
    if (from - to > 0.5) svg(group, "rect", { class: "wash", x: (x(at) - wide / 2).toFixed(1), width: wide.toFixed(2), y: to.toFixed(1), height: (from - to).toFixed(1) });
  });
  median.forEach((each, at) => {
    if (each > 0) svg(group, "rect", { class: "r-seen fill", x: (x(at) - Math.max(1.6, wide) / 2).toFixed(1), width: Math.max(1.6, wide).toFixed(2), y: (z(Math.max(each, bottom)) - 1).toFixed(1), height: 2 });
  });
  svg(drawing, "line", { class: "r-limit stroke dash", x1: gutter, x2: width, y1: z(mark.even), y2: z(mark.even) });
  svg(drawing, "text", { class: "halo", x: gutter + 4, y: z(mark.even) - 5 }, `even share, ${share(mark.even)}`);
  const spot = apart(1e9, 26);
  mark.named.forEach((at, place) => {
    const here = z(Math.max(most[at], bottom)), end = x(at) > width * 0.55, size = widthOf(mark.labels[place], "600 12px system-ui") + 16;
    const down = spot(x(at) + (end ? -9 : 9), here + 4, size, end);
    svg(drawing, "circle", { class: "r-seen ring", cx: x(at), cy: here, r: 4 });
    if (down !== null) svg(drawing, "text", { class: "halo strong", x: x(at) + (end ? -9 : 9), y: down, "text-anchor": end ? "end" : "start" }, seen(mark.labels[place], 60));
  });
  svg(drawing, "text", { x: gutter, y: height - 3 }, "longest axis");
  svg(drawing, "text", { x: width - 4, y: height - 3, "text-anchor": "end" }, "shortest");
  const legend = html(host, "p", { class: "legend" });
  html(legend, "span", {}, html(null, "i", { class: "yes", style: "height:4px;vertical-align:3px" }), "median token");
  html(legend, "span", {}, html(null, "i", { style: "background:var(--seen-wash)" }), "up to the 95th percentile");
  html(legend, "span", {}, html(null, "i", { style: "border:2px solid var(--seen);border-radius:50%" }), "most of any token, for the named axes");
}

const DRAW = { lane, strip, ranges, grid, text, verdicts, table, plane, shares };
