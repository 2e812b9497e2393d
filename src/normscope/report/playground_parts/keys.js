// Which keys some query scores above all others, each verdict with what proves it: such a query, or weights of other
// keys that give the key itself. A key can't be selected iff it lies in the convex hull of the others.

// Coordinates in which the keys spread equally far in every direction they span: stretching changes no verdict.
function spread(keys) {
  const center = times(
    keys[0].map((_, k) => sum(keys.map((v) => v[k]))),
    1 / keys.length
  );
  const basis = [];
  let rest = keys.map((v) => minus(v, center));
  const size = Math.max(1e-12, ...keys.map(length));
  while (basis.length < center.length) {
    const far = rest.reduce((best, v) => (length(v) > length(best) ? v : best));
    if (length(far) <= 1e-10 * size) break;
    const axis = unit(far);
    basis.push({ axis, reach: length(far) });
    rest = rest.map((v) => minus(v, times(axis, dot(v, axis)))); // and once more, for what rounding left
    rest = rest.map((v) => minus(v, times(axis, dot(v, axis))));
  }
  return { basis, places: keys.map((v) => basis.map(({ axis, reach }) => dot(minus(v, center), axis) / reach)) };
}

// Solve a small linear system by elimination with pivoting; null if it is singular.
function solve(matrix, right) {
  const rows = matrix.map((row, i) => [...row, right[i]]);
  for (let k = 0; k < rows.length; k++) {
    const best = rows.slice(k).reduce((b, row, i) => (Math.abs(row[k]) > Math.abs(rows[b][k]) ? k + i : b), k);
    if (Math.abs(rows[best][k]) < 1e-14) return null;
    [rows[k], rows[best]] = [rows[best], rows[k]];
    for (let i = 0; i < rows.length; i++) {
      if (i === k) continue;
      const factor = rows[i][k] / rows[k][k];
      rows[i] = rows[i].map((v, j) => v - factor * rows[k][j]);
    }
  }
  return rows.map((row, k) => row[rows.length] / row[k]);
}

// The point of a hull nearest to 0, as weights of its corners (Wolfe's method: corners come and go one at a time).
function nearest(corners) {
  let active = [0];
  let weights = [1];
  const point = () => corners[0].map((_, k) => sum(active.map((j, i) => weights[i] * corners[j][k])));
  for (let step = 0; step < 200; step++) {
    const p = point();
    const scores = corners.map((v) => dot(v, p));
    const next = scores.indexOf(lowest(scores));
    if (scores[next] > dot(p, p) - 1e-13 || active.includes(next)) break;
    active = [...active, next];
    weights = [...weights, 0];
    for (;;) {
      const gram = active.map((i) => [...active.map((j) => dot(corners[i], corners[j])), 1]);
      const free = solve([...gram, [...active.map(() => 1), 0]], [...active.map(() => 0), 1]);
      if (!free) return { point: point(), active, weights };
      const wanted = free.slice(0, -1);
      if (wanted.every((v) => v > 1e-14)) {
        weights = wanted;
        break;
      }
      const way = lowest(wanted.map((v, i) => (v > 1e-14 ? 1 : weights[i] / (weights[i] - v || 1))));
      weights = weights.map((v, i) => v + way * (wanted[i] - v));
      const kept = count(active.length).filter((i) => weights[i] > 1e-14);
      [active, weights] = [kept.map((i) => active[i]), kept.map((i) => weights[i])];
    }
  }
  return { point: point(), active, weights };
}

// For each key {selectable: true, query, margin} or {selectable: false, weights: [[key, weight], …]}.
function verdicts(keys) {
  const { basis, places } = spread(keys);
  return keys.map((key, i) => {
    const others = count(keys.length).filter((j) => j !== i);
    if (!others.length) return { selectable: true, query: unit(key.map(() => 1)), margin: null };
    const away = others.map((j) => minus(places[j], places[i]));
    const twin = away.findIndex((v) => length(v) < 1e-9);
    if (twin >= 0) return { selectable: false, weights: [[others[twin], 1]] };
    const near = nearest(away.map(unit)); // at unit length a rival close by weighs as much as one far away
    if (length(near.point) > 1e-9) {
      const query = unit(key.map((_, k) => -sum(basis.map(({ axis, reach }, b) => (near.point[b] * axis[k]) / reach))));
      const margin = lowest(others.map((j) => dot(query, minus(key, keys[j]))));
      if (margin > 0) return { selectable: true, query, margin };
    }
    const shares = near.active.map((j, a) => near.weights[a] / length(away[j]));
    return { selectable: false, weights: near.active.map((j, a) => [others[j], shares[a] / sum(shares)]) };
  });
}

// Edges of the hull of keys in three dimensions, to draw it: pairs of keys.
function hullEdges(keys) {
  const { basis, places } = spread(keys);
  const edges = new Map();
  const add = (...pairs) => pairs.forEach((pair) => edges.set(pair.join(), pair));
  const oneSided = (values) => !(values.some((v) => v > 1e-9) && values.some((v) => v < -1e-9));
  const all = count(keys.length);
  for (const i of all) {
    for (const j of all.slice(i + 1)) {
      const edge = minus(places[j], places[i]);
      if (basis.length === 2) {
        if (oneSided(places.map((p) => edge[0] * (p[1] - places[i][1]) - edge[1] * (p[0] - places[i][0])))) add([i, j]);
      } else if (basis.length === 3) {
        for (const k of all.slice(j + 1)) {
          const normal = cross(edge, minus(places[k], places[i]));
          if (oneSided(places.map((p) => dot(normal, minus(p, places[i]))))) add([i, j], [j, k], [i, k]);
        }
      }
    }
  }
  return [...edges.values()];
}
const cross = (a, b) => count(3).map((i) => a[(i + 1) % 3] * b[(i + 2) % 3] - a[(i + 2) % 3] * b[(i + 1) % 3]);
