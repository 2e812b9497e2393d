// HTML of controls and legends.
const options = (names) => joined(names, ([value, name]) => `<option value="${value}">${name}</option>`);
const stopButton = (name, i) => `<li><button data-go="${i}"><span>${name}</span></button></li>`;
const button = (what, name, more = "") => `<button class="button ${more}" data-${what}>${name}</button>`;
const TRANSPORT =
  button("play", "", "main") +
  button("back", "‹ Back") +
  button("next", "Step ›") +
  '<input type="range" data-time min="0" step="0.01" aria-label="Progress">';

function legend(rows) {
  const sample = (kind) => (typeof kind === "number" ? markOf(kind, 9, 6) : `<path class="${kind}" d="M1 6h16"/>`);
  const row = ([kind, words]) =>
    `<li><svg width="18" height="12" aria-hidden="true">${sample(kind)}</svg> ${words}</li>`;
  return joined(rows, row);
}

function slider(name, i) {
  const most = name === "gain" ? 3 : 2;
  const range = `min="${most - 4}" max="${most}" step="0.05"`;
  return `<input type="range" data-${name}="${i}" ${range} aria-label="${name} of channel ${i + 1}"><output></output>`;
}

// By the name of the part that each belongs to; what does not change with the state.
function controls(nets) {
  const presets = { reset: "Reset", dead: "One gain 0", eps: "Large eps", flat: "Flat ellipse", cloud: "New inputs" };
  const heads = `<div class="heads"><span></span><span>gain</span><span></span><span>bias</span><span></span></div>`;
  const channel = (i) =>
    `<div data-channel><span>channel ${i + 1}</span>${slider("gain", i)}${slider("bias", i)}</div>`;
  const points = ({ labels, classes }) => `${labels.length} points, ${classes} classes`;
  return {
    steps: joined(STEPS, stopButton),
    kind: options(Object.entries(KINDS).map(([kind, { name }]) => [kind, name])),
    data: options(Object.entries(nets).map(([name, net]) => [name, points(net)])),
    presets: joined(Object.entries(presets), ([preset, name]) => button(`preset="${preset}"`, name)),
    gains: heads + joined(count(6), channel),
    legend: legend([
      [0, "key that some query selects"],
      [1, "key that none can"],
      ["hull", "hull"],
      ["limit", "limit of the outputs"],
      ["query", "query"]
    ]),
    "crease-legend": legend([
      ...count(3).map((i) => [i, `class ${i + 1}`]),
      ["folded", "the line"],
      ["limit", "where a LayerNorm writes"]
    ])
  };
}
