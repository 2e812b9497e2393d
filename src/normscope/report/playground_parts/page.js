// Controls and drawings. `init` brings one playground to life; a page may hold it anywhere.
function init(root, { read = () => "", write = () => {} } = {}) {
  const part = (name) => root.querySelector(`[data-part="${name}"]`);
  const all = (selector) => [...root.querySelectorAll(selector)];
  const say = (name, words) => {
    if (part(name).textContent !== words) part(name).textContent = words; // a live region speaks only when it changes
  };
  const filled = {};
  const fill = (name, html) => {
    if (filled[name] !== html) part(name).innerHTML = filled[name] = html; // an open list stays open
  };
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  const nets = {};
  for (const [name, net] of Object.entries(JSON.parse(part("networks").textContent))) nets[name] = readNet(net);
  let state = fromLink(read(), nets);
  let now = measure(state);
  let written = 0;

  // Time runs in both tabs: one unit is one step of the norm, or one layer of the network.
  const clock = () => (state.tab === "steps" ? ["t", 4] : ["at", depthOf(nets[state.data])]);
  let playing = false;
  let target = null;
  let hold = 0;
  let frame = 0;
  const stop = () => {
    [playing, target] = [false, null];
    cancelAnimationFrame(frame);
  };
  function tick(before) {
    frame = requestAnimationFrame((moment) => {
      const [name, end] = clock();
      const seconds = Math.min(0.05, (moment - before) / 1000);
      const speed = state.tab === "steps" ? 0.6 : 0.3;
      if (target !== null) {
        const left = target - state[name];
        state[name] += Math.sign(left) * Math.min(Math.abs(left), 1.3 * seconds);
        if (state[name] === target) target = null;
      } else if ((hold -= seconds) <= 0) {
        const next = Math.min(end, Math.floor(state[name] + 1e-9) + 1);
        state[name] = Math.min(next, state[name] + speed * seconds);
        if (state[name] === next) [hold, playing] = [1.2, next < end];
      }
      render();
      if (playing || target !== null) tick(moment);
    });
  }
  function go(to) {
    const [name, end] = clock();
    stop();
    target = clamp(to, 0, end);
    if (still.matches) [state[name], target] = [target, null];
    else tick(performance.now());
    render();
  }
  function play() {
    const [name, end] = clock();
    if (playing) {
      stop();
      state[name] = Math.round(100 * state[name]) / 100;
    } else {
      stop();
      if (state[name] >= end) state[name] = 0;
      if (still.matches) return go(Math.floor(state[name] + 1e-9) + 1); // step by step, without motion
      [playing, hold] = [true, 0.3];
      tick(performance.now());
    }
    render();
  }
  const change = (values) => {
    state = settled({ ...state, ...values }, nets);
    render();
  };

  // ---- showing

  for (const [name, html] of Object.entries(controls(nets))) fill(name, html);
  for (const each of all(".transport")) each.innerHTML = TRANSPORT;

  function drawing(name, { height, content }, width, words) {
    const svg = part(name);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.style.height = `${height}px`;
    svg.ariaLabel = words;
    svg.innerHTML = content;
  }
  const widthOf = (name) => Math.max(260, Math.round(part(name).getBoundingClientRect().width));

  function renderSteps() {
    now = measure(state);
    now.edges = state.channels === 3 ? hullEdges(now.keys) : null;
    const step = Math.round(state.t);
    const total = now.keys.length;
    const able = total - lostIn(now.verdicts);
    const width = widthOf("space");
    const panels = panelsOf(state, now, width);
    const content = joined(panels, (panel) => drawPanel(panel, state, now));
    const [head, rest] = caption(state, now);
    const label = `${head}. ${able} of ${total} keys can be selected.`;
    drawing("space", { height: panels[0].height, content }, width, label);
    const turns = panels[0].block.length === 3;
    say("turning", `${turns ? "Drag to turn, or use the arrow keys. " : ""}Click a point to follow it.`);
    part("space").classList.toggle("turns", turns);
    say("head", Math.abs(state.t - step) > 0.02 && !skips(state, step) ? `On the way. ${head}` : head);
    say("rest", rest);
    say("able", `${able} of ${total}`);
    const [first, last] = [0, 4].map((i) => total - lostAt(now, i));
    say(
      "able-hint",
      `${first} as inputs, ${last} as outputs of this norm. A square is a key inside the hull of the others: whatever the query, another one scores as high.`
    );
    const top = Math.max(2 / total, ...now.attention);
    const bar = (v, i) =>
      `<i class="${now.verdicts[i].selectable ? "" : "lost"} ${i === state.follow ? "picked" : ""}" style="height:${((100 * v) / top).toFixed(2)}%"></i>`;
    fill("bars", joined(now.attention, bar) + `<u style="bottom:${100 / total / top}%"></u>`);
    const strongest = now.attention.indexOf(highest(now.attention));
    const even = highest(now.attention) - lowest(now.attention) < 1e-9;
    part("bars").ariaLabel = even
      ? `All ${total} keys get the same attention.`
      : `Key ${strongest + 1} gets the most attention, ${Math.round(100 * now.attention[strongest])}%.`;
    say("query-hint", queryHint(state, now));
    fill("formulas", formulas(state, now));
    const rows = ["x, input", "z, projected", "s, scaled", "gain · s", "y, output"];
    const cells = (values) => joined(values, (v) => `<td>${fixed(v, state.channels > 4 ? 2 : 3)}</td>`);
    fill(
      "numbers",
      joined(
        rows,
        (name, i) =>
          `<tr class="${i === step ? "on" : ""}"><th scope="row">${name}</th>${cells(now.stops[state.follow][i])}</tr>`
      )
    );
    say("limit", limitWords(now));
    fill("follow", options(count(total).map((i) => [i, `Input ${i + 1}`])));
    part("follow").value = state.follow;
    renderControls();
  }

  function renderControls() {
    const kind = KINDS[state.kind];
    part("kind").value = state.kind;
    part("channels").value = state.channels;
    fill("groups", options(divisions(state).map((g) => [g, g])));
    part("groups").value = state.groups;
    part("groups").disabled = divisions(state).length < 2;
    const size = state.channels / state.groups;
    const alone = kind.project && state.channels === 3;
    say(
      "groups-hint",
      alone
        ? "Three channels can’t be divided here: a group of one channel minus its own mean is 0. Choose 4 or 6 channels."
        : size === 1 && kind.scale
          ? "Each channel is scaled by itself: what remains is its sign, softened by eps."
          : state.channels > 3 && state.groups === 1
            ? "One group has too many dimensions to draw: each picture is a shadow, so points lie inside the outline."
            : ""
    );
    for (const input of all("input[data-gain], input[data-bias]")) {
      const name = "gain" in input.dataset ? "gain" : "bias";
      const value = state[name][input.dataset[name]];
      input.value = value;
      input.disabled = !kind.affine;
      input.nextElementSibling.textContent = value.toFixed(2).replace("-", "−");
    }
    all("[data-channel]").forEach((row, i) => (row.hidden = i >= state.channels));
    part("eps").value = state.eps ? Math.log10(state.eps) : -6;
    part("eps").disabled = !kind.scale;
    part("eps").ariaValueText = number(state.eps);
    say("eps-value", number(state.eps));
    part("tilt").value = state.tilt;
    part("tilt").disabled = state.aim;
    say("tilt-value", `${state.tilt}°`);
    part("aim").ariaPressed = state.aim;
    say("aim", `Aim at key ${state.follow + 1}`);
  }

  function renderCreases() {
    const net = nets[state.data];
    const found = measureCreases(net);
    const [head, rest] = creaseCaption(net, found, state.at);
    const width = widthOf("plane");
    const passed = Math.min(depthOf(net), Math.floor(state.at));
    drawing(
      "plane",
      drawPlane(net, found, state.at, width),
      width,
      `${head}. ${found.runs[passed]} runs of equal classes along the line.`
    );
    const words = found.runs
      .slice(0, passed + 1)
      .map((runs, k) => `${runs} after ${k} LayerNorm${k === 1 ? "" : "s"}`)
      .join(", ");
    drawing(
      "rows",
      drawRows(net, found, state.at, widthOf("rows")),
      widthOf("rows"),
      `Runs of equal classes: ${words}.`
    );
    say("crease-head", head);
    say("crease-rest", rest);
    say("runs", String(found.runs[passed]));
    say(
      "runs-hint",
      `of ${found.runs[0]} runs are left after ${passed} of ${depthOf(net)} LayerNorms. ${net.classes} classes need ${net.classes}.`
    );
    part("data").value = state.data;
    say("data-hint", netWords(net));
    const stops = ["Line", ...count(depthOf(net)).map((i) => `LayerNorm ${i + 1}`)];
    fill("crease-steps", joined(stops, stopButton));
    part("crease-legend").children[2].hidden = net.classes < 3;
  }

  function render() {
    for (const tab of all("[role=tab]")) {
      const chosen = tab.dataset.tab === state.tab;
      tab.ariaSelected = chosen;
      tab.tabIndex = chosen ? 0 : -1;
      root.querySelector(`#pg-${tab.dataset.tab}`).hidden = !chosen;
    }
    (state.tab === "steps" ? renderSteps : renderCreases)();
    const [name, end] = clock();
    for (const button of all(`#pg-${state.tab} [data-go]`)) {
      const place = Number(button.dataset.go);
      button.classList.toggle("done", place <= state[name] + 1e-9);
      button.classList.toggle("skipped", state.tab === "steps" && skips(state, place));
      button.ariaCurrent = place === Math.round(state[name]) ? "step" : null;
    }
    for (const slider of all(`#pg-${state.tab} [data-time]`)) {
      slider.max = end;
      slider.value = state[name];
      slider.ariaValueText = state.tab === "steps" ? STEPS[Math.round(state.t)] : `${Math.round(state.at)} of ${end}`;
    }
    all("[data-play]").forEach((button) => (button.textContent = playing ? "Pause" : "Play"));
    clearTimeout(written);
    written = setTimeout(() => write(toLink(state)), 200);
  }

  // ---- acting

  const having = (step) => (KINDS[state.kind][step] ? state.kind : "layernorm");
  const presets = {
    reset: () => ({ ...structuredClone(FRESH), t: state.t, yaw: state.yaw, pitch: state.pitch }),
    dead: () => ({ kind: having("affine"), gain: [1.3, 0, 1, 0.8, 1.2, 0.9] }),
    eps: () => ({ kind: having("scale"), eps: 1 }),
    flat: () => ({ kind: having("affine"), gain: [1.9, 0.15, 0.2, 1.6, 0.1, 0.3] }),
    cloud: () => ({ seed: state.seed + 1, inputs: null })
  };
  const shownAt = { dead: 3, eps: 2, flat: 3 };
  const turn = (right, down) => {
    const yaw = state.yaw + right;
    const once = yaw - 2 * Math.PI * Math.round(yaw / (2 * Math.PI));
    const [a, b] = [once, clamp(state.pitch + down, -1.5, 1.5)].map((v) => Math.round(1000 * v) / 1000);
    change({ yaw: a, pitch: b });
  };
  root.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    const [name] = clock();
    if (button.dataset.tab) {
      stop();
      change({ tab: button.dataset.tab });
    } else if (button.dataset.go) go(Number(button.dataset.go));
    else if ("play" in button.dataset) play();
    else if ("back" in button.dataset) go(Math.ceil(state[name] - 1e-9) - 1);
    else if ("next" in button.dataset) go(Math.floor(state[name] + 1e-9) + 1);
    else if (button === part("aim")) change({ aim: !state.aim });
    else if (button.dataset.preset) {
      change(presets[button.dataset.preset]());
      if (button.dataset.preset in shownAt) go(shownAt[button.dataset.preset]);
    }
  });
  root.addEventListener("input", (event) => {
    const { target: from } = event;
    const value = Number(from.value);
    if ("time" in from.dataset) {
      stop();
      change({ [clock()[0]]: value });
    } else if ("gain" in from.dataset) change({ gain: state.gain.with(from.dataset.gain, value) });
    else if ("bias" in from.dataset) change({ bias: state.bias.with(from.dataset.bias, value) });
    else if (from === part("eps")) change({ eps: value <= -6 ? 0 : Number((10 ** value).toPrecision(3)) });
    else if (["tilt", "follow", "groups", "channels"].includes(from.dataset.part))
      change({ [from.dataset.part]: value });
    else if (from === part("data")) change({ data: from.value, at: 0 });
    else if (from === part("kind")) {
      const kind = from.value;
      if (kind === "layernorm") change({ kind, groups: 1 });
      else if (kind !== "lng") change({ kind });
      else if (state.channels / state.groups > 1 && state.groups > 1) change({ kind });
      else change({ kind, channels: state.channels === 4 ? 4 : 6, groups: 2 });
    }
  });
  root.addEventListener("keydown", (event) => {
    const { target: at, key } = event;
    const side = { ArrowLeft: -1, ArrowRight: 1 }[key];
    if (at.dataset.tab && side) {
      const tabs = all("[role=tab]");
      const other = tabs[(tabs.indexOf(at) + side + tabs.length) % tabs.length];
      other.focus();
      other.click();
    } else if (at === part("stage")) {
      const way = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, -0.1], ArrowDown: [0, 0.1] }[key];
      if (way) turn(...way);
      else if (key === " ") play();
      else return;
      event.preventDefault();
    }
  });
  const space = part("space");
  let held = null;
  space.addEventListener("pointerdown", (event) => {
    held = { x: event.clientX, y: event.clientY, moved: 0 };
    space.setPointerCapture(event.pointerId);
  });
  space.addEventListener("pointermove", (event) => {
    if (!held) return;
    const [right, down] = [event.clientX - held.x, event.clientY - held.y];
    held = { x: event.clientX, y: event.clientY, moved: held.moved + Math.abs(right) + Math.abs(down) };
    turn(0.008 * right, 0.008 * down);
  });
  space.addEventListener("pointerup", (event) => {
    if (held && held.moved < 5) {
      const box = space.getBoundingClientRect();
      const place = [event.clientX - box.left, event.clientY - box.top];
      const panels = panelsOf(state, now, widthOf("space"));
      const distance = (key) =>
        Math.min(...panels.map(({ block, at }) => length(minus(at(block.map((i) => key[i])).slice(0, 2), place))));
      const distances = now.keys.map(distance);
      const closest = distances.indexOf(lowest(distances));
      if (distances[closest] < 24) change({ follow: closest });
    }
    held = null;
  });
  space.onpointercancel = () => (held = null);
  let width = 0;
  new ResizeObserver(() => {
    if (root.clientWidth === width) return;
    width = root.clientWidth;
    render();
  }).observe(root);
  render();

  return {
    set: (values) => {
      stop();
      change(values);
    },
    open: (link) => {
      stop();
      state = fromLink(link, nets);
      render();
    },
    link: () => toLink(state),
    // Everything that is shown, as numbers at full precision.
    state: () => {
      if (state.tab === "creases")
        return { tab: "creases", data: state.data, t: state.at, ...measureCreases(nets[state.data]) };
      const { gain, bias, at, data, inputs, eps, groups, ...own } = state;
      const { edges, ...shown } = now;
      return { ...own, ...shown, selectable: now.verdicts.map((each) => each.selectable) };
    }
  };
}
window.normscopePlayground = { init };
