"""Inputs for property tests: members of the family, and gains in every corner."""

import numpy as np
from hypothesis import strategies as st

from normscope import Norm

FLAGS = [(True, True), (False, True), (True, False), (False, False)]  # project, scale
seeds = st.integers(0, 2**32 - 1)


@st.composite
def gains(draw, size):
    """Gains of one vector: ordinary, tied, zero, negative, spread over many decades, or equal up to the last bit."""
    rng = np.random.default_rng(draw(seeds))
    kind = draw(
        st.sampled_from(["ordinary", "tied", "some zero", "all zero", "equal", "spread", "last bit", "tiny", "huge"])
    )
    ordinary = rng.normal(size=size)
    return {
        "ordinary": ordinary,
        "tied": rng.choice([0.5, 1.0, -1.0, 2.0], size),
        "some zero": ordinary * (rng.random(size) < 0.6),
        "all zero": np.zeros(size),
        "equal": np.full(size, 0.7) * rng.choice([-1, 1], size),
        "spread": 10.0 ** rng.uniform(-8, 8, size) * rng.choice([-1, 1], size),
        "last bit": 1 + np.finfo(float).eps * rng.integers(0, 6, size),
        "tiny": 1e-150 * ordinary,
        "huge": 1e150 * ordinary,
    }[kind]


@st.composite
def norms(draw, flags=FLAGS, eps=(0.0, 1e-12, 1e-5, 1.0), biased=True):
    """A member of the family, with up to 24 channels."""
    groups, channels = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    size = groups * channels
    project, scale = draw(st.sampled_from(flags))
    gain = draw(gains(size))
    bias = np.random.default_rng(draw(seeds)).normal(size=size) * np.abs(gain).max() if biased else None
    return Norm(gain=gain, bias=bias, eps=draw(st.sampled_from(eps)), project=project, scale=scale, groups=groups)


@st.composite
def inputs(draw, norm, rows=4):
    """Random inputs for a norm, with a mean, at any scale."""
    rng = np.random.default_rng(draw(seeds))
    size = 10.0 ** draw(st.sampled_from([-150, -8, 0, 0, 0, 8, 150]))
    return size * (rng.normal(size=(rows, norm.size)) + rng.normal())
