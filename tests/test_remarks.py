import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from normscope.norm import Norm
from normscope.report.terminal import as_text
from normscope.results.inspection import AffineFit, Axes, Gains, GroupFactor, Inspection, Landing, NormGeometry
from normscope.results.inventory import FoundNorm
from normscope.results.rows import Spread
from normscope.rules.inspection import CAVEATS, FINDINGS, headline, remarks

CALM_LANDING = Landing(
    inputs=100,
    nearness=Spread(0.99, 0.999, 1.0),
    ones_share=Spread(0.0, 0.01, 0.02),
    mean_over_sigma=Spread(0.01, 0.1, 0.5),
    mean_over_sigma_max=1.0,
    dead_variance=0.1,
    rms_angle=Spread(0.1, 0.2, 0.3),
    nonlinearity=Spread(0.5, 1.0, 2.0),
    group_factors=(GroupFactor(2, Spread(2.1, 2.2, 2.4)), GroupFactor(16, Spread(20.0, 30.0, 50.0))),
)


CALM_GAINS = Gains(dead=(), exactly_zero=0, near_zero=0, negative=0, dead_direction=())
CALM_AXES = Axes(
    longest=12.0,
    median=8.0,
    shortest=6.0,
    anisotropy=2.0,
    effective=60.0,
    longest_channels=(),
    low=-12.0,
    high=12.0,
    low_channel=0,
    high_channel=1,
    raw_shortest=6.0,
    raw_anisotropy=2.0,
)


def calm_norm(name="h.0.ln_1", *, found=None, gains=None, axes=None, gain=None, **changes):
    """A norm about which there is nothing to say, with some figures of its parts changed; parts that are "none" are."""
    ln = FoundNorm.of(
        Norm(gain=gain or [1.0] * 64),
        name,
        eps_place="inside",
        has_bias=True,
        gain_convention="w",
        unchecked=None,
    )
    norm = NormGeometry(
        replace(ln, **(found or {})),
        dimension=63,
        raw_dimension=63,
        gains=replace(CALM_GAINS, **(gains or {})),
        axes=None if axes == "none" else replace(CALM_AXES, **(axes or {})),
        reads=("wte",),
        read_by=("h.0.attn",),
    )
    return replace(norm, **changes)


def inspection(*norms, **changes):
    whole = Inspection("gpt", "pre-norm", True, False, 10_000, 256, norms)
    return replace(whole, **changes)


CALM = [calm_norm(f"h.{layer}.ln_1") for layer in range(4)]


def words_about(**changes):
    """What is said when one norm differs from four calm ones."""
    return remarks(inspection(*CALM, calm_norm("odd.one", **changes)))


def test_says_so_when_nothing_stands_out():
    (sentence,) = remarks(inspection(*CALM))
    assert sentence == "Nothing stands out in the 4 norms of gpt. Longest over shortest axis is 2 to 2."


def test_says_so_when_there_are_no_norms():
    assert remarks(inspection()) == ["No normalization layer was found in gpt."]
    assert as_text(inspection()) == "• No normalization layer was found in gpt."


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"found": {"kind": "unknown", "problem": "adding a constant changes the output"}},
            r"1 of 5 norms fits no member of the family: odd\.one \(adding a constant changes the output\)",
        ),
        ({"found": {"assumed": ("kind", "eps")}}, r"Assumed.*kind and eps of 1 of 5 norms"),
        (
            {"axes": {"anisotropy": 500.0}},
            r"odd\.one is the most uneven norm: its longest axis is 500 times its shortest\.",
        ),
        (
            {"gains": {"dead": (127, 223, 319)}, "dimension": 381},
            r"Channels 127, 223 and 319 of odd\.one are dead \(gain zero within rounding\): 381 live dimensions\.",
        ),
        ({"gains": {"dead": tuple(range(9))}}, r"Channels 0, 1, 2, 3, 4 and 4 more of odd\.one are dead"),
        (
            {"gain": [1e-5] + [1.0] * 63},
            r"1 of 5 norms almost mutes a channel \(a gain below 1% of the median gain\): 0 \(1 norm\)\.",
        ),
        ({"gains": {"negative": 2}}, r"odd\.one flips the sign of 2 of 64 channels"),
        ({"axes": {"low": -70_000.0}}, r"Channel 0 of odd\.one can reach 70,000, .* \(65,504\)"),
        ({"axes": {"effective": 3.0}}, r"The ellipsoid of odd\.one is as narrow as 3 equal axes, of 63"),
        ({"found": {"kind": "projection"}, "axes": "none"}, r"1 of 5 norms \(odd\.one\) does not scale"),
        (
            {"landing": replace(CALM_LANDING, mean_over_sigma_max=45.0)},
            r"\|mean\|/σ of the input reaches 45 in odd\.one and exceeds 30 in 1 of 5 norms",
        ),
        (
            {"landing": replace(CALM_LANDING, nearness=Spread(0.1, 0.5, 0.7))},
            r"Half of the inputs of odd\.one land at 0\.5 or less of the way to the surface",
        ),
        (
            {"landing": replace(CALM_LANDING, ones_share=Spread(0.1, 0.4, 0.7))},
            r"40% of \|x\|² at odd\.one lies along the ones vector .*which its projection removes",
        ),
    ],
    ids=lambda value: str(next(iter(value.values())))[:20] if isinstance(value, dict) else "",
)
def test_what_is_odd_is_named_with_its_number(changes, said):
    assert [sentence for sentence in words_about(**changes) if re.search(said, sentence)]


@pytest.mark.parametrize(
    ("fits", "said"),
    [
        (
            (("full", 0.4), ("full", 0.0007)),
            "1 of 2 norms can't be replaced by an affine map: that loses over 10% of the output's variance "
            "(most at first: 40%)",
        ),
        (
            (("frozen scale", 0.5), ("frozen scale", 0.25)),
            "2 of 2 norms can't be replaced by a fixed scale (one number in place of the divisor)",
        ),
        (
            (("frozen scale", 0.5), ("full", 0.2)),
            "1 of 2 norms can't be replaced by an affine map: that loses over 10% of the output's variance "
            "(most at last: 20%)",
        ),
    ],
)
def test_what_no_affine_map_explains_is_named_and_h_is_not_compared(fits, said):
    """H of one norm is 2,000,000 times that of the other: mostly the size of its inputs, and not worth a sentence."""
    bends = [Spread(0.1, 4.0, 9.0), Spread(1e-6, 2e-6, 3e-6)]
    norms = [
        calm_norm(
            name, landing=replace(CALM_LANDING, nonlinearity=spread, affine_fit=AffineFit(fit, share, 1000, 1000))
        )
        for name, spread, (fit, share) in zip(("first", "last"), bends, fits, strict=True)
    ]
    sentences = remarks(inspection(*norms))
    assert [sentence for sentence in sentences if sentence.startswith(said)]
    assert "bends" not in " ".join(sentences)


def test_norms_that_are_all_but_affine_are_not_worth_a_sentence():
    landing = replace(CALM_LANDING, affine_fit=AffineFit("full", 0.09, 1000, 1000))
    assert "variance of" not in " ".join(words_about(landing=landing))


def test_an_rmsnorm_keeps_what_lies_along_the_ones_vector():
    landing = replace(CALM_LANDING, ones_share=Spread(0.1, 0.4, 0.7))
    assert "which it keeps" in " ".join(words_about(found={"kind": "rmsnorm"}, landing=landing))


def test_after_a_caveat_nothing_else_may_stand_out():
    assert remarks(inspection(calm_norm(found={"assumed": ("eps",)})))[-1].startswith(
        "Nothing else stands out in the 1 norm of"
    )


def test_headline_tells_kinds_placement_embeddings_and_parameters():
    facts = headline(
        inspection(*CALM, calm_norm("q", found={"kind": "rmsnorm"}), placement="both", qk_norm=True, text="a.txt")
    )
    assert facts == [
        "4 LayerNorm, 1 RMSNorm",
        "pre-norm and post-norm",
        "tied embeddings",
        "QK-norm",
        "256 of 10,000 parameters in norms (2.6%)",
        "run on a.txt",
    ]


def test_headline_admits_what_weights_alone_do_not_tell():
    facts = headline(inspection(placement=None, tied_embeddings=None, parameters=None))
    assert facts[1:] == [
        "placement unknown",
        "embeddings tied or not: unknown",
        "no QK-norm",
        "256 parameters in norms",
    ]


numbers = st.floats(0, 1e30) | st.just(float("inf")) | st.just(float("nan"))
ratios = st.none() | st.floats(1, 1e30) | st.just(float("inf")) | st.just(float("nan"))  # longest over shortest


@st.composite
def any_norm(draw):
    spread = st.none() | st.builds(Spread, *[st.floats(0, 1e6)] * 3)
    landing = st.none() | st.builds(
        Landing, st.integers(1, 9), spread, spread, spread, st.floats(0, 1e6), st.none(), spread, spread, st.just(())
    )
    axes = {"anisotropy": ratios, "effective": numbers, "low": numbers, "high": numbers}
    return calm_norm(
        found={
            "kind": draw(st.sampled_from(["layernorm", "rmsnorm", "lng", "projection", "affine", "unknown"])),
            "assumed": draw(st.sampled_from([(), ("eps",), ("kind", "eps")])),
        },
        gains={name: draw(st.integers(0, 64)) for name in ("exactly_zero", "near_zero", "negative")},
        axes=draw(st.just("none") | st.fixed_dictionaries(axes)),
        dimension=draw(st.none() | st.integers(0, 64)),
        landing=draw(landing),
    )


@given(st.lists(any_norm(), min_size=1, max_size=6))
def test_any_inspection_gives_one_to_eight_sentences_with_a_number_each(norms):
    sentences = remarks(inspection(*norms))
    assert 1 <= len(sentences) <= 8
    assert all(re.search(r"\d", sentence) and sentence.endswith(".") for sentence in sentences)
    assert not any(re.search(r"\b(nan|inf|None)\b", sentence) for sentence in sentences)


def test_every_rule_says_what_it_looks_at_and_is_silent_about_calm_norms():
    for rule in (*CAVEATS, *FINDINGS):
        assert rule.page.endswith(".")
        assert not isinstance(rule(inspection(*CALM)), list)
