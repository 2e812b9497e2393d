"""Outputs around one input: support, maximizer and membership, against grids, many digits and attacks."""

import math
import pickle

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from normscope import Norm
from normscope.errors import InputError
from normscope.geometry import Neighbourhood
from oracles import jacobian
from strategies import FLAGS, inputs, norms, seeds

SCALING = [flags for flags in FLAGS if flags[1]]
radii = st.sampled_from([0.0, 1e-9, 1e-3, 0.1, 0.7, 1 - 1e-7, 1 + 1e-7, 1.5, 30.0, 1e9])  # relative to |Πx|


def in_one_group(norm):
    return Norm(gain=norm.gain, bias=norm.bias, eps=norm.eps, project=norm.projects, scale=norm.scales)


@st.composite
def neighbourhoods(draw, single=False, eps=(0.0, 1e-12, 1e-5, 1.0), flags=FLAGS):
    """A norm, an input of any size, and a radius that is small, large or nearly |Πx|; some inputs are constant."""
    norm = draw(norms(flags=flags, eps=eps))
    if single:
        norm = in_one_group(norm)
    x = draw(inputs(norm, rows=1))[0]
    if draw(st.booleans()) and draw(st.booleans()):
        x = np.full(norm.size, x[0]) if norm.projects else np.zeros(norm.size)
    return norm.around(x, draw(radii) * (length(norm.project(x)) or 1.0))


def length(v):
    """|v| along the last axis, where squares would overflow too."""
    largest = np.maximum(np.max(np.abs(v), axis=-1, keepdims=True), 1e-300)
    return largest[..., 0] * np.linalg.norm(v / largest, axis=-1)


def in_ball(near, rng, count):
    """Random inputs within the radius, half of them at its end."""
    steps = rng.normal(size=(count, near.norm.size))
    steps /= np.maximum(np.linalg.norm(steps, axis=1, keepdims=True), 1e-300)
    lengths = np.where(np.arange(count) % 2, rng.random(count) ** (1 / near.norm.size), 1.0)
    return near.x + near.radius * lengths[:, None] * steps


def sizes(norm, w):
    """What rounding in w·y is relative to."""
    largest = np.abs(norm.gain) * np.sqrt(norm.size) + np.abs(norm.bias)
    return np.abs(w) @ largest


def scale_of(near, w):
    """The same, also where nothing bounds the outputs."""
    extra = 0.0 if near.norm.scales else np.abs(w) @ np.abs(near.norm.gain) * (np.abs(near.x).max() + near.radius)
    return sizes(near.norm, w) + extra


def grid_support(near, w):
    """The disc in the plane of z₀ and v on a polar grid, refined by golden section along its edge."""
    norm = near.norm
    channels = norm.size
    z, v = norm.project(near.x), norm.project(norm.gain * w)
    rho, size, floor = np.linalg.norm(z), np.linalg.norm(v), channels * norm.eps
    if size == 0:
        return float(w @ norm.bias)
    phi = math.atan2(np.linalg.norm(v * rho - z * (z @ v) / rho), z @ v) if rho else 0.0

    def value(psi, share=1.0):
        along, across = rho + share * near.radius * np.cos(psi), share * near.radius * np.sin(psi)
        root = np.sqrt(along**2 + across**2 + floor)
        return (math.cos(phi) * along + math.sin(phi) * across) / np.where(root == 0, 1.0, root)

    angles, shares = np.linspace(-np.pi, np.pi, 2001), np.linspace(0, 1, 41)
    inside = value(angles[:, None], shares[None, :])
    middle = angles[np.argmax(inside[:, -1])]
    low, high, golden = middle - 0.01, middle + 0.01, (5**0.5 - 1) / 2
    for _ in range(60):
        left, right = high - golden * (high - low), low + golden * (high - low)
        low, high = (low, right) if value(left) > value(right) else (left, high)
    best = max(inside.max(), value((low + high) / 2))
    return float(w @ norm.bias + math.sqrt(channels) * size * best)


def exact_support(near, w):
    """60 digits: every stationary point of the edge, from the quartic in tan(ψ/2)."""
    with mpmath.workdps(60):
        number, norm = mpmath.mpf, near.norm
        x, g, w, b = ([number(float(entry)) for entry in part] for part in (near.x, norm.gain, w, norm.bias))
        count, r, e = len(x), number(near.radius), len(x) * number(norm.eps)

        def centred(part):
            return [entry - norm.projects * mpmath.fsum(part) / count for entry in part]

        z, v = centred(x), centred([p * q for p, q in zip(g, w, strict=True)])
        rho, size = mpmath.norm(z), mpmath.norm(v)
        cosine = mpmath.fdot(z, v) / rho / size
        sine = mpmath.sqrt(max(0, 1 - cosine**2))
        q4, q3 = -((rho - r) ** 2 + e) * sine, -2 * (r * (r - rho) + e) * cosine
        q1, q0 = -2 * (r * (r + rho) + e) * cosine, ((rho + r) ** 2 + e) * sine
        roots = mpmath.polyroots([q4, q3, 0, q1, q0], maxsteps=500, extraprec=400)
        angles = [2 * mpmath.atan(mpmath.re(root)) for root in roots] + [0, mpmath.pi]

        def value(psi):
            along, across = rho + r * mpmath.cos(psi), r * mpmath.sin(psi)
            return (cosine * along + sine * across) / mpmath.sqrt(along**2 + across**2 + e)

        best = max(value(psi) for psi in angles)
        return float(mpmath.fdot(w, b) + mpmath.sqrt(count) * size * best)


@pytest.mark.parametrize("project", [True, False])
@pytest.mark.parametrize("eps", [0.0, 1e-8, 1e-3, 1.0])
def test_support_agrees_with_a_grid_in_the_plane(project, eps):
    rng = np.random.default_rng(7)
    for size in (2, 3, 5, 9):
        norm = Norm(gain=rng.normal(size=size), bias=rng.normal(size=size), eps=eps, project=project)
        if size - project < 2:
            continue
        for relative in (0.05, 0.6, 0.95, 1.3, 8.0):
            x = rng.normal(size=size) * 10 ** rng.uniform(-1, 1)
            near = norm.around(x, relative * np.linalg.norm(norm.project(x)))
            across = rng.normal(size=size)
            for w in (across, x / norm.gain, -x / norm.gain, across - 3 * x / norm.gain):
                scale = np.sqrt(size) * np.linalg.norm(norm.gain * w)
                assert near.support(w) == pytest.approx(grid_support(near, w), abs=1e-9 * scale)


@pytest.mark.parametrize("eps", [1e-30, 1e-12, 1e-5, 1.0])
@pytest.mark.parametrize("relative", [1e-12, 1e-4, 0.5, 1 - 1e-9, 1 + 1e-9, 2.0, 1e6])
def test_support_agrees_with_many_digits(eps, relative):
    rng = np.random.default_rng(3)
    for project in (True, False):
        norm = Norm(gain=rng.normal(size=6), bias=rng.normal(size=6), eps=eps, project=project)
        x = rng.normal(size=6)
        near = norm.around(x, relative * np.linalg.norm(norm.project(x)))
        across = rng.normal(size=6)
        tilted = np.arcsin(min(1.0, relative))  # at the tangent of the cone, where two stationary points meet
        side = norm.project(across) - norm.project(x) * (across @ norm.project(x)) / (norm.project(x) @ x)
        turned = np.cos(tilted) * norm.project(x) / np.linalg.norm(norm.project(x)) + np.sin(tilted) * side / (
            np.linalg.norm(side)
        )
        readers = np.array([across, -x / norm.gain + 1e-7 * across, x / norm.gain - 1e-3 * across, turned / norm.gain])
        for w, support in zip(readers, near.support(readers), strict=True):
            scale = np.sqrt(6) * np.linalg.norm(norm.gain * w) + abs(w) @ abs(norm.bias)
            # the last bit of x counts as much where Πa nearly vanishes: there |Πx| − r is what is left of it
            rho = length(norm.project(x))
            condition = rho / np.hypot(rho - near.radius, np.sqrt(6 * eps))
            assert support == pytest.approx(exact_support(near, w), abs=(1e-13 + 4e-16 * condition) * scale)


@given(neighbourhoods(), seeds)
def test_no_input_within_the_radius_goes_beyond_the_support(near, seed):
    rng = np.random.default_rng(seed)
    w = rng.normal(size=(3, near.norm.size))
    values = near.norm(in_ball(near, rng, 50)) @ w.T
    assert np.all(values <= near.support(w) + 1e-11 * scale_of(near, w))


@settings(max_examples=30)
@given(neighbourhoods(), seeds)
def test_ascent_never_passes_the_support(near, seed):
    rng = np.random.default_rng(seed)
    w = rng.normal(size=near.norm.size)
    points, step = in_ball(near, rng, 12), 0.5
    for _ in range(60):
        moves = rng.normal(size=points.shape) / np.sqrt(near.norm.size)
        tried = points - near.x + step * near.radius * moves
        tried /= np.maximum(1.0, length(tried)[:, None] / max(near.radius, 1e-300))
        better = near.norm(near.x + tried) @ w > near.norm(points) @ w
        points[better] = (near.x + tried)[better]
        step *= 0.93
    assert np.all(near.norm(points) @ w <= near.support(w) + 1e-11 * scale_of(near, w))


@given(neighbourhoods(single=True, eps=(1e-5, 1.0)), seeds)
def test_the_maximizer_is_within_the_radius_and_attains_the_support(near, seed):
    rng = np.random.default_rng(seed)
    w = rng.normal(size=(2, 3, near.norm.size))
    best = near.maximizer(w)
    assert best.shape == w.shape
    slack = 1e-12 * (near.radius + length(near.x))
    assert np.all(length(best - near.x) <= near.radius + slack)
    attained = np.sum(near.norm(best) * w, axis=-1)
    # Where |a| is far larger than √ε and Πa is nearly 0, the rounding of a itself turns Πa.
    left = length(near.norm.project(best)) + np.sqrt(near.norm.eps)
    rounding = np.minimum(1e-9 + 1e-15 * (length(best) + near.radius) / left, 1.0)
    assert np.all(np.abs(attained - near.support(w)) <= rounding * scale_of(near, w))


@given(seeds, st.integers(3, 9), st.sampled_from([0.01, 0.5, 0.999, 1.01, 7.0]), st.booleans())
def test_without_eps_the_outputs_are_those_of_a_cone(seed, size, relative, project):
    rng = np.random.default_rng(seed)
    norm = Norm(gain=rng.normal(size=size), bias=rng.normal(size=size), eps=0, project=project)
    x, w = rng.normal(size=size), rng.normal(size=size)
    z, v = norm.project(x), norm.project(norm.gain * w)
    near = norm.around(x, relative * np.linalg.norm(z))
    phi = np.arccos(np.clip(z @ v / np.linalg.norm(z) / np.linalg.norm(v), -1, 1))
    opening = np.arcsin(relative) if relative < 1 else np.pi
    expected = w @ norm.bias + np.sqrt(size) * np.linalg.norm(v) * np.cos(max(0.0, phi - opening))
    assert near.support(w) == pytest.approx(expected, abs=1e-12 * sizes(norm, w))
    assert norm(near.maximizer(w)) @ w == pytest.approx(expected, abs=1e-9 * sizes(norm, w))
    little = Norm(gain=norm.gain, bias=norm.bias, eps=1e-18, project=project).around(x, near.radius)
    assert little.support(w) == pytest.approx(expected, abs=1e-8 * sizes(norm, w))


def test_at_the_radius_of_the_input_itself_the_maximizer_shows_the_direction_of_the_limit():
    norm = Norm(gain=[1, 1], project=False, eps=0)
    near = norm.around([3, 4], radius=5)
    across = np.array([-4.0, 3.0]) / 5
    w = across - 0.1 * np.array([3.0, 4.0])
    assert norm(near.maximizer(w)) == pytest.approx(np.sqrt(2) * across, abs=1e-7)
    assert near.support(w) == pytest.approx(np.sqrt(2))


@given(norms(flags=SCALING, eps=(1e-5, 1.0)), seeds)
def test_a_small_radius_gives_the_jacobian(norm, seed):
    rng, norm = np.random.default_rng(seed), in_one_group(norm)
    x, w = rng.normal(size=norm.size), rng.normal(size=norm.size)
    radius = 1e-6
    expected = norm(x) @ w + radius * np.linalg.norm(jacobian(norm, x).T @ w)
    assume(np.linalg.norm(norm.project(x)) > 0.1 or norm.eps == 1)
    assert norm.around(x, radius).support(w) == pytest.approx(expected, abs=1e-9 * sizes(norm, w))


@given(neighbourhoods(flags=SCALING), seeds)
def test_support_grows_with_the_radius_up_to_the_ellipsoid(near, seed):
    norm, w = near.norm, np.random.default_rng(seed).normal(size=(4, near.norm.size))
    slack = 1e-12 * sizes(norm, w)
    everything = norm.ellipsoid.support(w)
    assert np.array_equal(norm.around(near.x, math.inf).support(w), everything)
    assert np.all(near.support(w) <= norm.around(near.x, 2 * near.radius).support(w) + slack)
    assert np.all(near.support(w) <= everything + slack)
    assert np.all(norm(near.x) @ w.T <= near.support(w) + slack)
    # c = 1 where the norm projects: one output. Otherwise a huge radius reaches nearly everything.
    huge = norm.around(near.x, 1e12 * (1 + length(near.x))).support(w)
    assert huge == pytest.approx(everything, abs=1e-11 * np.max(sizes(norm, w)))


@given(neighbourhoods(), seeds)
def test_outputs_of_inputs_within_the_radius_are_contained(near, seed):
    points = in_ball(near, np.random.default_rng(seed), 6)
    assume(length(near.x) <= 1e6 * max(near.radius, length(near.norm.project(near.x))))
    assert near.contains(near.norm(points), tol=1e-10).all()
    assert near.contains(near.norm(near.x))


@settings(max_examples=60)
@given(seeds, st.integers(2, 8), st.booleans(), st.sampled_from([0.0, 1e-2, 1.0]), st.integers(0, 3))
def test_outputs_of_inputs_beyond_the_radius_are_not_contained(seed, size, project, eps, dead):
    """The nearest of the inputs that give y is found by descent over the inputs; y is in the set from there on."""
    rng = np.random.default_rng(seed)
    gain = rng.normal(size=size) + 0.5
    gain[: min(dead, size - 1)] = 0
    norm = Norm(gain=gain, bias=rng.normal(size=size), eps=eps, project=project)
    x, a = rng.normal(size=size), rng.normal(size=size)
    distance = nearest_preimage(norm, x, a)
    assume(distance > 1e-3)
    y = norm(a)
    assert norm.around(x, distance * (1 + 1e-5)).contains(y)
    assert not norm.around(x, distance * (1 - 1e-5)).contains(y)
    assert norm.around(x, math.inf).contains(y)


def nearest_preimage(norm, x, a):
    """Least |a' − x| with norm(a') = norm(a): lengths of Πa' on a grid, then finer; dead channels in closed form."""
    z, start = norm.project(a), norm.project(x)
    live, dead = norm.gain != 0, norm.gain == 0
    free = np.count_nonzero(dead) - norm.projects
    floor = norm.size * norm.eps
    root = np.sqrt(z @ z + floor)

    def squares(scale):  # scale is √(|z'|² + Nε); z' = scale·z/root on live channels
        fixed = np.outer(scale / root, z[live])
        total = np.sum((fixed - start[live]) ** 2, axis=1)
        count = np.count_nonzero(dead)
        mean = -fixed.sum(axis=1) / count if norm.projects and count else 0.0
        around = start[dead].mean() if norm.projects and count else 0.0
        left = scale**2 - floor - np.sum(fixed**2, axis=1) - count * mean**2
        total = total + count * (mean - around) ** 2
        total = total + (np.sqrt(np.maximum(left, 0)) - np.linalg.norm(start[dead] - around)) ** 2
        return np.where(left >= -1e-12 * scale**2, total, np.inf)

    if free <= 0:
        if norm.eps:
            return np.linalg.norm(z - start)
        scale = max(0.0, z @ start) / (z @ z)
        return np.linalg.norm(scale * z - start)
    low, high = np.sqrt(floor), 50.0
    for _ in range(30):
        grid = np.linspace(low, high, 2001)
        found = int(np.argmin(squares(grid)))
        low, high = grid[max(found - 2, 0)], grid[min(found + 2, 2000)]
    return float(np.sqrt(squares(np.array([(low + high) / 2]))[0]))


def test_on_a_line_only_the_ends_count():
    two = Norm(gain=[1, 1], eps=0.5)  # z = (t, −t)/√2
    one = Norm(gain=[3], bias=[1], eps=0.5, project=False)
    for t, radius in ((2.0, 0.5), (2.0, 2.0), (2.0, 5.0), (0.0, 1.0), (-1.0, 0.0)):
        near = two.around(np.array([t, -t]) / np.sqrt(2) + 3, radius)
        ends = np.array([t - radius, t + radius])
        low, high = ends / np.sqrt(ends**2 + 1)
        assert near.support([[1, 0], [-1, 0]]) == pytest.approx([high, -low])
        assert two(near.maximizer([1, 0]))[0] == pytest.approx(high)
        low, high = 1 + 3 * ends / np.sqrt(ends**2 + 0.5)
        assert one.around([t], radius).support([[1], [-1]]) == pytest.approx([high, -low])


def test_on_a_line_without_eps_the_norm_is_the_sign():
    norm = Norm(gain=[2, 1], bias=[1, 0], eps=0)
    assert norm.around([3, 1], 0.5).support([[1, 0], [-1, 0]]) == pytest.approx([3, -3])
    assert norm.around([3, 1], 2).support([[1, 0], [-1, 0]]) == pytest.approx([3, 1])
    assert norm.around([3, 1], 2 * np.sqrt(2)).support([-1, 0]) == pytest.approx(1)
    assert norm.around([0, 0], 0).support([[1, 0], [-1, 0]]) == pytest.approx([1, -1])
    outputs = [[3, -1], [-1, 1], [1, 0], [2, 0]]
    assert list(norm.around([3, 1], 1.5).contains(outputs)) == [True, True, True, False]
    assert list(norm.around([3, 1], 0.5).contains(outputs)) == [True, False, False, False]


def test_one_channel_that_is_projected_has_one_output():
    near = Norm(gain=[2], bias=[1]).around([5], 3)
    assert near.support([[1], [-2]]) == pytest.approx([1, -2])
    assert list(near.contains([[1], [1.1]])) == [True, False]
    assert near.maximizer([1]) == pytest.approx([5], abs=3)


@pytest.mark.parametrize("project", [True, False])
def test_without_the_scale_step_the_set_is_exact_for_all_groups(project):
    rng = np.random.default_rng(0)
    norm = Norm(gain=rng.normal(size=6), bias=rng.normal(size=6), project=project, scale=False, groups=3)
    near, w = norm.around(rng.normal(size=6), 0.4), rng.normal(size=(5, 6))
    assert near.is_exact
    assert np.sum(norm(near.maximizer(w)) * w, axis=1) == pytest.approx(near.support(w))
    assert np.linalg.norm(near.maximizer(w) - near.x, axis=1) == pytest.approx(np.full(5, 0.4))
    assert near.contains(norm(near.maximizer(w))).all()
    outside = near.x + 1.001 * (near.maximizer(w) - near.x)
    assert not near.contains(norm(outside)).any()
    with pytest.raises(InputError, match="bounded"):
        norm.around(near.x, math.inf).support(w)


def test_several_groups_share_the_radius_so_that_support_is_a_bound_and_membership_is_exact():
    rng = np.random.default_rng(1)
    norm = Norm(gain=np.ones(6), eps=0.1, groups=2)
    x, w = rng.normal(size=6), rng.normal(size=6)
    near = norm.around(x, 0.5)
    assert not near.is_exact
    assert "a bound: 2 groups share the radius" in repr(near)
    parts = [Norm(gain=np.ones(3), eps=0.1).around(part, 0.5) for part in np.split(x, 2)]
    assert near.support(w) == pytest.approx(sum(p.support(v) for p, v in zip(parts, np.split(w, 2), strict=True)))
    together = np.concatenate([p.maximizer(v) for p, v in zip(parts, np.split(w, 2), strict=True)])
    assert not near.contains(norm(together))
    assert norm.around(x, 0.5 * np.sqrt(2) + 1e-9).contains(norm(together))
    with pytest.raises(InputError, match="needs one group: 2 groups share the radius"):
        near.maximizer(w)


def test_a_constant_input_goes_straight_along_the_reader():
    norm = Norm(gain=[1, 2, 3], bias=[1, 1, 1], eps=0.25)
    near, w = norm.around([4, 4, 4], 2), np.array([1.0, 0.0, -1.0])
    assert near.support(w) == pytest.approx(
        np.sqrt(3) * np.linalg.norm(norm.project(norm.gain * w)) * 2 / np.sqrt(4.75)
    )
    assert norm(near.maximizer(w)) @ w == pytest.approx(near.support(w))


def test_a_reader_exactly_against_the_input_is_served_by_any_side():
    norm = Norm(gain=np.ones(4), eps=0.01, project=False)
    near = norm.around([3, 0, 0, 0], 1)
    w = np.array([-1.0, 0.0, 0.0, 0.0])
    assert near.support(w) == pytest.approx(exact_support(near, np.array([-1, 1e-15, 0, 0])))
    assert norm(near.maximizer(w)) @ w == pytest.approx(near.support(w))
    assert np.linalg.norm(near.maximizer(w) - near.x) == pytest.approx(1)


def test_half_precision_and_tensors_are_taken_as_they_are():
    norm, x = Norm(gain=np.ones(5)), np.linspace(-1, 2, 5).astype(np.float16)
    expected = norm.around(x.astype(float), 0.25).support(np.eye(5))
    assert np.array_equal(norm.around(x, np.float16(0.25)).support(np.eye(5, dtype=np.float16)), expected)
    assert np.array_equal(norm.around(torch.tensor(x).bfloat16(), 0.25).x, torch.tensor(x).bfloat16().double().numpy())


@pytest.mark.parametrize("radius", [-1, math.nan, -math.inf, "1", None, [1, 2]])
def test_what_is_no_radius_is_refused(radius):
    with pytest.raises(InputError, match="radius must be one number, 0 or more, got"):
        Norm(gain=[1, 2]).around([1, 2], radius)


def test_what_is_no_input_is_refused():
    norm = Norm(gain=[1, 2, 3])
    for wrong, message in (([1, 2], "3 channels"), ([[1, 2, 3]], "one input"), ([1, math.nan, 3], "finite")):
        with pytest.raises(InputError, match=message):
            norm.around(wrong, 1)
    with pytest.raises(InputError, match="finite radius"):
        norm.around([1, 2, 3], math.inf).maximizer([1, 0, 0])
    with pytest.raises(InputError, match="tol must be"):
        norm.around([1, 2, 3], 1).contains([1, 0, 0], tol=-1)


def test_a_neighbourhood_is_a_value_with_one_line():
    near = Norm(gain=[1, 2, 3]).around([1, 2, 4], 0.5)
    assert isinstance(near, Neighbourhood)
    assert repr(near) == "Neighbourhood(Norm(layernorm, size=3, eps=1e-05), radius 0.5, exact)"
    assert repr(pickle.loads(pickle.dumps(near))) == repr(near)
    assert not near.x.flags.writeable
