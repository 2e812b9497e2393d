// The sentences, which change with the state, and formulas with the numbers of the followed input.

function caption(state, now) {
  const step = Math.round(state.t);
  const lost = lostIn(now.verdicts);
  const total = now.keys.length;
  const { norm } = now;
  const group = groupSize(norm);
  const lostWords = `${total - lost} of ${total} keys can be selected.`;
  if (step === 0) {
    const inside = lost
      ? `${lost} of them lie${lost === 1 ? "s" : ""} inside the hull of the others: no query scores such a key highest.`
      : "None of them lies inside the hull of the others.";
    return [`${total} inputs, anywhere in space`, `They have all lengths and directions. ${inside}`];
  }
  if (skips(state, step)) {
    const left = ["", "subtract the mean", "scale", "multiply by a gain", "add a bias"][step];
    const rest = [
      "",
      "Inputs keep their mean: there is no plane, and only the query 0 scores all keys alike.",
      `A short key stays hidden among longer ones. ${lostWords}`
    ];
    return [`This norm does not ${left}`, rest[step] || "The vectors pass as they are."];
  }
  if (step === 1) {
    const one = norm.groups === 1;
    const head = one ? "Subtract the mean: everything falls onto one plane" : "Subtract the mean of each group";
    const what = one
      ? `Each vector loses its part along (${norm.gain.map(() => 1).join(", ")}), the arrow: a query along it scores every key the same.`
      : `Each group loses its part along (1, …, 1): ${norm.groups} dimensions are gone.`;
    return [head, `${what} ${lostWords} Flattening can hide a key, never free one.`];
  }
  if (step === 2) return scalingCaption(state, now, lost);
  const several = severalShapes(norm);
  const [round, stretched] = norm.scale ? shapeOf(norm) : ["set", "set"];
  if (step === 3) {
    const dead = norm.gain.filter((g) => g === 0).length;
    const becomes = round === stretched ? `another ${stretched}` : `an ${stretched}`;
    const head = `Multiply by the gains: ${several ? "each" : "the"} ${round} becomes ${becomes}`;
    if (dead === 1 && norm.project && group > 2)
      return [
        head,
        "One gain is 0, and so is that channel of every output. The others become free of each other: no dimension is lost."
      ];
    if (dead)
      return [
        head,
        `${dead === 1 ? "One gain is" : `${dead} gains are`} 0: a dimension is lost, and keys may fall onto each other. ${lostWords}`
      ];
    const tilts = norm.project ? `The ${group > 2 ? "plane" : "line"} tilts: its normal is now along 1/gain. ` : "";
    return [head, `${tilts}Which keys can win does not change: stretching keeps hulls.`];
  }
  const set = norm.scale
    ? `Every output that this norm can write is in ${several ? `these ${stretched}s` : `this ${stretched}`}.`
    : "Nothing scales, so the outputs have no bound.";
  return ["Add the bias: the whole set moves", `Nothing else changes. ${set}`];
}

function scalingCaption(state, now, lost) {
  const { norm } = now;
  const total = now.keys.length;
  const group = groupSize(norm);
  const [round] = shapeOf(norm);
  const points = { box: "the corners of a box", segment: "two points for each group" }[round];
  const onto = points || (norm.groups > 1 ? `one ${round} for each group` : `a ${round}`);
  const near = norm.eps > 1e-3 ? `, or less: eps = ${number(norm.eps)} leaves short inputs inside` : "";
  const freed = state.t < 2 && lost < lostAt(now, 1) ? "Scaling has begun to free keys. " : "";
  const why = points ? ": inputs with the same signs fall together" : "";
  const rest = lost
    ? `${lost} of ${total} keys can’t be selected${why}.`
    : "Points on a round surface never hide each other: every key can be selected.";
  const which = norm.groups > 1 ? "The length of each group" : "The length";
  return [
    `Divide by the root mean square: onto ${onto}`,
    `${which} becomes ${group === 1 ? 1 : `√${group}`}${near}. ${freed}${rest}`
  ];
}

// What the scaled set is called, before the gain and after it.
function shapeOf(norm) {
  const dimension = groupSize(norm) - norm.project;
  if (groupSize(norm) === 1) return ["box", "box"];
  return (
    [
      ["segment", "segment"],
      ["circle", "ellipse"]
    ][dimension - 1] || ["sphere", "ellipsoid"]
  );
}
const severalShapes = (norm) => norm.groups > 1 && groupSize(norm) > 1;

function queryHint(state, now) {
  const { norm, scores, keys } = now;
  const even = `Dashed: equal attention, 1/${keys.length} each.`;
  const followed = now.verdicts[state.follow];
  if (state.aim) {
    if (followed.selectable)
      return `This query scores key ${state.follow + 1} above all others, by ${number(followed.margin)} or more. ${even}`;
    const mix = followed.weights.map(([j, w]) => `${number(w)} · key ${j + 1}`).join(" + ");
    return `No query selects key ${state.follow + 1}: it is ${mix}, so one of these always scores as high.`;
  }
  if (state.tilt) return `Tilted by ${state.tilt}°, the query prefers some keys. ${even}`;
  if (highest(scores) - lowest(scores) < 1e-9)
    return norm.project
      ? `All bars are equal: the query is the normal of ${norm.groups > 1 ? "each" : "the"} plane, so every key has the same score. This is how a head averages.`
      : "All bars are equal: the query reads a channel that is the same in every key.";
  return norm.project
    ? `${even} Before the projection even this query prefers some keys.`
    : `${even} Without projection there is no plane: only the query 0 scores all keys alike.`;
}

function limitWords({ semi_axes: axes, norm }) {
  if (!axes) return "The outputs have no limit, as nothing scales.";
  if (!axes.length) return "All outputs are the bias: every gain is 0.";
  return `The limit of the outputs: ${groupSize(norm) === 1 ? "half-edges" : "semi-axes"} ${axes.map((v) => v.toFixed(4)).join(", ")}.`;
}

const number = (v) => {
  const size = Math.abs(v);
  if (size === 0 || (size >= 1e-3 && size < 1e4)) return String(Number(v.toPrecision(3))).replace("-", "−");
  const [digits, power] = v.toExponential(1).split("e");
  const raised = joined([...String(Number(power))], (c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c]));
  return `${digits.replace(".0", "").replace("-", "−")}·10${raised}`;
};
const fixed = (v, digits = 3) => (Math.abs(v) < 5e-4 ? 0 : v).toFixed(digits).replace("-", "−");

// ---- formulas, in MathML, with the numbers of the followed input

function formulas(state, now) {
  const { norm } = now;
  const [x, z] = now.stops[state.follow];
  const step = Math.ceil(state.t);
  // Words with spaces between them become MathML: letters are names, all else is an operator.
  const math = (words) =>
    joined(words.split(" "), (word) => {
      const tag = word[0].toUpperCase() === word[0].toLowerCase() ? "mo" : "mi";
      return `<${tag}>${word}</${tag}>`;
    });
  const group = norm.groups > 1 ? math("group") : "<mrow/>";
  const show = (i, right, live) => {
    const mark = skips(state, i) ? "off" : i === Math.min(step, 3) ? "on" : "";
    return `<div class="formula ${mark}"><math>${math(`${" zsy"[i]} =`)}${right}</math><span>${live}</span></div>`;
  };
  const perGroup = (values, of) =>
    groupsOf(values, norm)
      .map((part) => fixed(of(part)))
      .join(", ");
  const onMean = `${math("x − mean (")}<msub><mi>x</mi>${group}</msub>${math(")")}`;
  const onRoot = `${math("z /")}<msqrt>${math("mean (")}<msubsup><mi>z</mi>${group}<mn>2</mn></msubsup>${math(") + ε")}</msqrt>`;
  return [
    norm.project ? show(1, onMean, `mean ${perGroup(x, mean)}`) : show(1, math("x"), ""),
    norm.scale ? show(2, onRoot, `√ = ${perGroup(z, (part) => root(part, norm.eps))}`) : show(2, math("z"), ""),
    show(3, math(KINDS[state.kind].affine ? "gain · s + bias" : "s"), "")
  ].join("");
}
