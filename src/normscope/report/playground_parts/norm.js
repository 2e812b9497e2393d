// A norm as normscope.Norm computes it, on one vector: {project, scale, gain, bias, eps, groups}.
const sum = (v) => v.reduce((a, b) => a + b, 0);
const dot = (a, b) => a.reduce((total, v, i) => total + v * b[i], 0);
const length = (v) => Math.hypot(...v);
const minus = (a, b) => a.map((v, i) => v - b[i]);
const times = (v, factor) => v.map((x) => x * factor);
const highest = (v) => Math.max(...v);
const lowest = (v) => Math.min(...v);
const unit = (v) => times(v, 1 / (length(v) || 1));
const clamp = (v, low, high) => Math.min(high, Math.max(low, v));
// Points of the unit circle, the first again at the end.
const around = (n) => count(n + 1).map((i) => [Math.cos, Math.sin].map((of) => of((2 * Math.PI * i) / n)));
const joined = (list, html) => list.map(html).join("");
const count = (n) => Array.from({ length: n }, (_, i) => i);

const groupSize = (norm) => norm.gain.length / norm.groups;
const groupsOf = (x, norm) => count(norm.groups).map((g) => x.slice(g * groupSize(norm), (g + 1) * groupSize(norm)));
const mean = (v) => v[0] + sum(v.map((x) => x - v[0])) / v.length; // exact where all entries are equal
const root = (v, eps) => Math.sqrt(dot(v, v) / v.length + eps);

function project(x, norm) {
  if (!norm.project) return x.slice();
  return groupsOf(x, norm).flatMap((part) => {
    const away = part.map((v) => v - part[0]); // a large mean must not swallow the differences
    return away.map((v) => v - sum(away) / away.length);
  });
}

function scale(z, norm) {
  if (!norm.scale) return z.slice();
  return groupsOf(z, norm).flatMap((part) => times(part, 1 / (root(part, norm.eps) || 1)));
}

// What one vector is before and after every step: x, z, s, gain · s, y.
function stopsOf(x, norm) {
  const z = project(x, norm);
  const s = scale(z, norm);
  const stretched = s.map((v, i) => v * norm.gain[i]);
  return [x, z, s, stretched, stretched.map((v, i) => v + norm.bias[i])];
}

// The same at a time between two stops, on the straight way from one to the other.
function between(stops, t) {
  const i = Math.min(stops.length - 2, Math.floor(t));
  return stops[i].map((v, k) => (t === i ? v : v + (stops[i + 1][k] - v) * (t - i)));
}

// Gains and biases as far as they are applied at time t.
const gainAt = (norm, t) => norm.gain.map((g) => 1 + (g - 1) * clamp(t - 2, 0, 1));
const biasAt = (norm, t) => norm.bias.map((b) => b * clamp(t - 3, 0, 1));

// Semi-axes of the set of outputs: singular values of √c·GΠ in every group, by rotations of pairs of columns.
function semiAxes(norm) {
  if (!norm.scale) return null;
  const c = groupSize(norm);
  const lengths = groupsOf(norm.gain, norm).flatMap((gain) => {
    const columns = count(c).map((j) =>
      gain.map((g, i) => Math.sqrt(c) * g * ((i === j) - (norm.project ? 1 / c : 0)))
    );
    for (let sweep = 0; sweep < 30; sweep++) {
      for (let a = 0; a < c; a++) {
        for (let b = a + 1; b < c; b++) {
          const [p, q] = [columns[a], columns[b]];
          const both = dot(p, q);
          if (Math.abs(both) <= 1e-16 * length(p) * length(q)) continue;
          const angle = 0.5 * Math.atan2(2 * both, dot(p, p) - dot(q, q));
          const [cos, sin] = [Math.cos(angle), Math.sin(angle)];
          columns[a] = p.map((v, i) => cos * v + sin * q[i]);
          columns[b] = p.map((v, i) => cos * q[i] - sin * v);
        }
      }
    }
    return columns.map(length);
  });
  const longest = highest(lengths);
  return lengths.filter((v) => v > 1e-12 * longest).sort((a, b) => b - a);
}

// A query of length 1 that scores all keys alike, whatever the inputs: the normals of the groups' planes. A channel
// whose gain is 0 has the same value in every key, so it is such a direction too. null: only the query 0 does.
function equalQuery(norm, t) {
  const gain = gainAt(norm, t);
  const parts = groupsOf(gain, norm).map((part) => {
    const dead = part.map((g) => Math.abs(g) < 1e-12);
    if (dead.includes(true)) return unit(dead.map(Number));
    if (!norm.project || t < 1) return part.map(() => 0);
    const least = lowest(part.map(Math.abs));
    return unit(part.map((g) => least / g));
  });
  const query = parts.flat();
  return query.some((v) => v) ? unit(query) : null;
}
