// What the playground shows, as one object, and the same as a link.
const LONGEST = 40; // inputs that a link may name
const FRESH = {
  ...{ tab: "steps", kind: "layernorm", channels: 3, groups: 1, eps: 1e-5, t: 0, seed: 7, inputs: null },
  ...{ gain: [1.3, 0.7, 1, 0.8, 1.2, 0.9], bias: [0.6, -0.3, 0.5, -0.4, 0.2, 0.3], tilt: 0, follow: 0, aim: false },
  ...{ yaw: -1.2, pitch: 0.35, data: "nine", at: 0 }
};
const NUMBERS = {
  eps: [0, 10],
  t: [0, 4],
  seed: [0, 1e6],
  tilt: [0, 90],
  yaw: [-7, 7],
  pitch: [-1.5, 1.5],
  at: [0, 9]
};

// A state as a link, and back: only what differs from a fresh state is written, and only what makes sense is read.
function toLink(state) {
  const parts = [];
  for (const [name, plain] of Object.entries(FRESH)) {
    let value = state[name];
    if (name === "gain" || name === "bias") {
      if (String(value) === String(plain)) continue;
      value = value.slice(0, state.channels);
    }
    if (name === "inputs" && value) value = value.map(String).join(";");
    if (value !== null && String(value) !== String(plain)) parts.push(`${name}=${value}`);
  }
  return parts.join("&");
}

function fromLink(link, nets) {
  const given = new URLSearchParams(link);
  const state = structuredClone(FRESH);
  const list = (words) => words.split(",").map((v) => (v.trim() === "" ? NaN : Number(v)));
  const allowed = (name, values) => values.map(String).includes(given.get(name));
  if (allowed("tab", ["steps", "creases"])) state.tab = given.get("tab");
  if (allowed("kind", Object.keys(KINDS))) state.kind = given.get("kind");
  if (allowed("data", Object.keys(nets))) state.data = given.get("data");
  if (allowed("channels", [3, 4, 6])) state.channels = Number(given.get("channels"));
  if (allowed("groups", divisions(state))) state.groups = Number(given.get("groups"));
  state.aim = given.get("aim") === "true";
  for (const [name, [low, high]] of Object.entries(NUMBERS)) {
    const value = given.has(name) ? list(given.get(name))[0] : NaN;
    if (Number.isFinite(value)) state[name] = clamp(value, low, high);
  }
  state.seed = Math.round(state.seed);
  for (const name of ["gain", "bias"]) {
    const values = given.has(name) ? list(given.get(name)) : [];
    if (values.length === state.channels && values.every((v) => Math.abs(v) <= 10))
      state[name].splice(0, values.length, ...values);
  }
  const rows = given.has("inputs") ? given.get("inputs").split(";").map(list) : [];
  const fits = (row) => row.length === state.channels && row.every((v) => Math.abs(v) <= 1e6);
  if (rows.length && rows.length <= LONGEST && rows.every(fits)) state.inputs = rows;
  const most = (state.inputs || count(POINTS)).length - 1;
  if (given.has("follow")) state.follow = clamp(Math.round(Number(given.get("follow"))) || 0, 0, most);
  return settled(state, nets);
}

// LayerNorm in several groups is LN-G, and the other way round; groups must divide the channels.
function settled(state, nets) {
  if (!divisions(state).includes(state.groups)) state.groups = 1;
  if (state.kind === "layernorm" || state.kind === "lng") state.kind = state.groups > 1 ? "lng" : "layernorm";
  if (state.inputs && state.inputs[0].length !== state.channels) state.inputs = null;
  state.follow = Math.min(state.follow, (state.inputs || count(POINTS)).length - 1);
  state.at = Math.min(state.at, depthOf(nets[state.data]));
  return state;
}
