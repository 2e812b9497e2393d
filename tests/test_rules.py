"""Every rule finds something in a model made for it, and nothing in the one beside it."""

import importlib.util
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import normscope as ns
from architectures import made
from normscope.models.example_inputs import example_inputs
from normscope.results.finding_list import Finding
from normscope.results.inventory import Gate
from normscope.results.key_selection import EqualAttention, KeyAt, KeySelection, Place
from normscope.results.rows import Spread
from normscope.rules.rule import Skipped, all_rules
from normscope.studies.survey import survey
from test_remarks import CALM, calm_norm, inspection

ROOT = Path(__file__).parent.parent
RULES = all_rules()


class EpsOutside(nn.Module):
    """σ + ε in place of √(σ² + ε)."""

    def __init__(self, size, eps=1e-3):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x):
        centred = x - x.mean(-1, keepdim=True)
        return self.weight * centred / (centred.pow(2).mean(-1, keepdim=True).sqrt() + self.eps)


class Residual(nn.Module):
    """x + W·norm(x), and a norm at the end."""

    def __init__(self, factor):
        super().__init__()
        torch.manual_seed(1)
        self.norm, self.write, self.last = nn.LayerNorm(8), nn.Linear(8, 8), nn.LayerNorm(8)
        self.read = nn.Linear(8, 3)
        with torch.no_grad():
            self.write.weight[3] *= factor

    def forward(self, x):
        return self.read(self.last(x + self.write(self.norm(x))))


def rows(size=8, many=40, **changes):
    """Random inputs, some channels shifted or scaled."""
    x = torch.randn(many, size, generator=torch.Generator().manual_seed(0))
    x = x * changes.get("scale", 1.0) + changes.get("shift", 0.0)
    for channel, factor in changes.get("channels", {}).items():
        x[:, channel] *= factor
    if "sizes" in changes:
        x *= torch.logspace(0, changes["sizes"], many)[:, None]
    return x


def norm(gain=None, size=8, **changes):
    """A norm, whose gain is given, between what it reads and a linear layer."""
    torch.manual_seed(0)
    layer = nn.LayerNorm(size, **changes)
    if gain is not None:
        layer.weight.data[: len(gain)] = torch.tensor(gain)
    return nn.Sequential(layer, nn.Linear(size, 4))


def linear(factor):
    model = norm()
    model[1].weight.data *= factor
    return model


def neurons(bias, activation=nn.ReLU):
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 6), activation(), nn.Linear(6, 4))
    model[1].bias.data[2] = bias
    return model


def table():
    """A model of four tokens; the row of the third is a mean of others."""
    model = nn.Sequential(nn.Embedding(4, 2), nn.LayerNorm(2, elementwise_affine=False), nn.Linear(2, 4, bias=False))
    model[2].weight.data = torch.tensor([[4.0, 0.0], [0.0, 4.0], [0.0, 0.0], [-4.0, -4.0]])
    return model


def corners():
    """A model of three tokens, each of which wins."""
    model = nn.Sequential(nn.Embedding(3, 3), nn.LayerNorm(3), nn.Linear(3, 3, bias=False))
    model[2].weight.data = torch.eye(3)
    return model


def keys(never=0, angle=80.0):
    lost = tuple(KeyAt(0, at, "\n") for at in range(never))
    head = EqualAttention("attn", 0, 1.0, True, 2.0, 0.1, Spread(angle - 1, angle, angle + 1), True, 0.1, None, None)
    place = Place("attn", 0, 0, None, 100, never, 0, 0, 0, lost)
    return KeySelection("gpt", "9 characters", "heads", "any", "all", None, 1, (place,), (head,), (), holds=True)


def odd(**changes):
    return inspection(*CALM, calm_norm("odd.one", **changes))


class Three(nn.Module):
    """Three norms, the first of which reads small inputs."""

    def __init__(self, factor):
        super().__init__()
        self.factor, self.norms = factor, nn.ModuleList(nn.LayerNorm(8) for _ in range(3))

    def forward(self, x):
        return self.norms[2](x * self.factor + self.norms[1](x * self.factor) + self.norms[0](x))


TOKENS = torch.tensor([[0, 1, 2, 3]])
# A rule, what it finds something in, and what it finds nothing in: a model and its inputs, or a result.
CASES = {
    "NS101": ((linear(1e6), rows()), (linear(1.0), rows())),
    "NS102": ((norm(), rows(channels={3: 1e5})), (norm(), rows())),
    "NS103": ((Residual(100.0), rows()), (Residual(1.0), rows())),
    "NS104": ((norm(), rows(shift=100.0)), (norm(), rows())),
    "NS105": ((norm([1e5]), rows()), (norm([1e3]), rows())),
    "NS106": ((nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)), rows()), (norm(), rows())),
    "NS201": ((norm([0.0, 1e-4]), rows()), (norm([0.5, 0.1]), rows())),
    "NS202": ((neurons(-50.0), rows(4)), (neurons(0.0), rows(4))),
    "NS203": ((table(), TOKENS), (corners(), TOKENS[:, :3])),
    "NS204": (keys(never=12), keys()),
    "NS301": ((norm([2.0, 3.0]), rows()), (nn.Sequential(nn.ReLU(), norm([2.0])[0], nn.ReLU()), rows())),
    "NS302": ((norm(), rows(shift=1.0)), (norm(), rows())),
    "NS303": ((norm(), rows(scale=1e-3)), (norm(), rows())),
    "NS304": ((norm(size=64), rows(64, channels={5: 20.0, 9: 15.0})), (norm(size=64), rows(64))),
    "NS305": ((norm([100.0], size=64), rows(64)), (norm(size=64), rows(64))),
    "NS306": ((Three(100.0), rows()), (Three(1.0), rows())),
    "NS307": (keys(angle=4.0), keys(angle=80.0)),
    "NS308": ((norm([1e-3, 2e-3, 1e-2]), rows()), (norm([0.1]), rows())),
    "NS309": ((norm([-1.0]), rows()), (norm(), rows())),
    "NS310": ((norm(), rows(sizes=3.0, many=80)), (norm(elementwise_affine=False), torch.eye(8).repeat(5, 1))),
    "NS401": (odd(found={"kind": "unknown", "problem": "it adds"}), odd()),
    "NS402": ((nn.Sequential(EpsOutside(8), nn.Linear(8, 4)), rows()), (norm(), rows())),
    "NS403": (odd(found={"unchecked": "the model was not traced"}), odd()),
    "NS404": (odd(found={"assumed": ("kind", "eps")}), odd()),
    "NS405": (odd(found={"gate": Gate("after", "silu")}), odd()),
    "NS406": (odd(found={"kind": "projection"}, axes="none"), odd()),
}


def outcome(number, case):
    """What a rule says, and the value that its threshold was compared with."""
    rule = RULES[number]
    result = case
    if isinstance(case, tuple):
        found = survey(case[0], inputs=case[1], parts=[rule.reads])
        assert found.missing == ()
        result = found.results[rule.reads]
    return rule(result), None if rule.threshold is None else rule.threshold.measure(result)


def test_every_rule_has_a_case_a_page_and_a_name_of_its_own():
    assert set(CASES) == set(RULES)
    assert len({rule.name for rule in RULES.values()}) == len(RULES)
    for rule in RULES.values():
        assert rule.summary.endswith(".")
        assert "What to do: " in rule.page
        assert len(rule.page) > 150


@pytest.mark.parametrize("number", CASES)
def test_a_rule_finds_what_is_there_and_is_silent_beside_it(number):
    (found, value), (nothing, other) = (outcome(number, case) for case in CASES[number])
    assert isinstance(found, list)
    assert found
    assert not isinstance(nothing, list)
    if not isinstance(nothing, Skipped):
        assert nothing.endswith(".")
    for finding in found:
        assert (finding.rule, finding.name) == (number, RULES[number].name)
        assert_readable(finding)
    threshold = RULES[number].threshold
    if threshold is not None:
        assert threshold.passed(value)
        assert other is None or not threshold.passed(other)


def assert_readable(finding: Finding):
    sentences = (finding.title, finding.evidence, finding.why, finding.do)
    assert all(text.endswith((".", ")")) for text in sentences[:3]), sentences
    assert finding.do.endswith(".") or re.search(r"normscope [a-z]+ MODEL(.*[^.])?$", finding.do), finding.do
    assert not any(word in " ".join(sentences) for word in (" nan", "None", "e+0", "e-0", " inf "))
    assert any(character.isdigit() for character in finding.title)


def test_an_overflow_is_an_error_with_a_witness_and_a_note_without():
    (error, *_), _ = outcome("NS101", CASES["NS101"][0])
    assert (error.severity, error.sites) == ("error", ("1",))
    assert error.figure.value > error.figure.threshold == 65504.0
    found = survey(linear(1e6), parts=["layer_ranges"], inputs=rows()).results["layer_ranges"]
    loose = replace(
        found,
        layers=tuple(replace(row, verdict="not excluded", reached=None, observed=None) for row in found.layers),
        limit=replace(found.limit, open=1, reached=0),
    )
    assert [finding.severity for finding in RULES["NS101"](loose)] == ["note"]
    seen = replace(loose, layers=tuple(replace(row, observed=70_000.0) for row in loose.layers))
    assert RULES["NS101"](seen)[0].severity == "error"
    assert RULES["NS101"](seen)[0].sure == "seen on the text"


def test_dead_neurons_are_those_that_no_input_wakes():
    """The oracle: many inputs, the most extreme ones of every neuron among them."""
    for bias in (-50.0, -3.0, -0.5, 0.0):
        model = neurons(bias).double()
        row = survey(model, parts=["layer_ranges"], inputs=rows(4)).results["layer_ranges"].layers[1]
        with torch.no_grad():
            x = torch.cat([1e6 * torch.randn(20000, 4).double(), 1e6 * model[1].weight, -1e6 * model[1].weight])
            awake = (model[1](model[0](x)) > 0).any(dim=0)
        assert set(row.neurons.dead) == set(torch.nonzero(~awake).flatten().tolist())
        assert row.neurons.count == 6
    assert (
        survey(neurons(-4.0, nn.GELU), parts=["layer_ranges"], inputs=rows(4))
        .results["layer_ranges"]
        .layers[1]
        .neurons.dead
        == ()
    )
    slow = survey(neurons(-50.0, nn.SiLU), parts=["layer_ranges"], inputs=rows(4)).results["layer_ranges"].layers[1]
    assert slow.neurons.dead == (2,)


def test_a_massive_activation_is_named_with_its_channel_its_token_and_its_writer():
    torch.manual_seed(0)
    model = made("gpt2").eval()
    with torch.no_grad():
        model.transformer.h[0].mlp.c_proj.bias[7] = 5000.0
    finding = ns.check(model, inputs={"input_ids": torch.arange(20).reshape(2, 10)}, select=["NS102"]).findings[0]
    assert (finding.severity, finding.sure) == ("warning", "seen on the text")
    assert finding.title.startswith("Channel 7 of the stream reaches 5,000 at ")
    assert finding.sites == ("transformer.h.0.mlp.c_proj",)
    assert finding.norms == ("transformer.h.1.ln_1", "transformer.h.1.ln_2", "transformer.ln_f")


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "bert", "t5", "qwen3"])
def test_a_fresh_model_has_no_finding_above_a_note(architecture):
    torch.manual_seed(3)
    model = made(architecture).eval()
    found = ns.check(model, inputs=example_inputs(model), ignore=["NS203", "NS301"])
    assert {finding.severity for finding in found.findings} <= {"note"}
    assert len(found.clear) > 8


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("calibrate_rules", ROOT / "tools" / "calibrate_rules.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_made_of_the_rules_and_of_what_was_measured(tool):
    measured = json.loads((ROOT / "docs" / "results" / "rules.json").read_text(encoding="utf-8"))
    assert (ROOT / "docs" / "rules.md").read_text(encoding="utf-8") == tool.page(measured)


def test_thresholds_agree_with_what_was_found_in_measured_models(tool):
    """A rule that warns did so where its value is beyond the threshold of today; no fresh model has a warning."""
    measured = json.loads((ROOT / "docs" / "results" / "rules.json").read_text(encoding="utf-8"))
    assert len(measured) > 60
    for row in measured:
        assert row["model"] in tool.REAL or row["above_note"] == []
        for number in ("NS102", "NS105", "NS304"):
            value = row["values"][number]
            beyond = value is not None and RULES[number].threshold.passed(value)
            assert beyond == (number in row["above_note"]), (row["model"], number)
    real = {row["model"]: row for row in measured if row["model"] in tool.REAL}
    assert [real[name]["above_note"] for name in tool.REAL] == [[], ["NS304"], ["NS101", "NS102", "NS304"]]
