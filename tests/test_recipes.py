"""Recipes for quantizers: those from the graph keep the function, and those that don't are told, with the change."""

import copy
import importlib.util
import json
from pathlib import Path

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from architectures import random_model
from normscope.errors import InputError
from normscope.rewrite.quantizer_modules import MappingError, matching_sets, patterns_for, quantizer_modules
from normscope.rewrite.recipe import check_recipe, recipe
from normscope.rewrite.recipe_file import read_recipe

ROOT = Path(__file__).parent.parent
SIZE = 8


class Block(nn.Module):
    """A gated MLP behind a norm; `wrong` adds something to it that a mapping must not ignore."""

    def __init__(self, wrong="", activation=F.silu):
        super().__init__()
        self.norm = nn.LayerNorm(SIZE)
        self.gate, self.up = (nn.Linear(SIZE, 12) for _ in range(2))
        self.down = nn.Linear(12, SIZE)
        self.wrong, self.activation = wrong, activation
        for parameter in self.parameters():
            nn.init.normal_(parameter)

    def forward(self, x):
        y = self.norm(x)
        inner = self.activation(self.gate(y)) * self.up(y)
        if self.wrong == "up twice":
            inner = inner * self.up(y)
        if self.wrong == "up elsewhere":
            return x + self.down(inner), self.up(y)
        return x + self.down(inner) + (y if self.wrong == "skip" else 0.0)


class Stack(nn.Module):
    def __init__(self, *blocks):
        super().__init__()
        self.layers = nn.ModuleList(blocks)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def inputs(seed=0):
    return {"x": torch.randn(2, 3, SIZE, generator=torch.Generator().manual_seed(seed))}


def written(path, modifier, settings):
    path.write_text(yaml.safe_dump({"a_stage": {"a_modifiers": {modifier: settings}}}), encoding="utf-8")
    return path


def smoothing(path, *mappings):
    return written(path, "SmoothQuantModifier", {"mappings": [[list(readers), norm] for readers, norm in mappings]})


def pairs(found, modifier):
    return [(each.source, each.readers) for each in found.mappings if each.modifier == modifier]


def test_one_pattern_stands_for_every_layer_and_the_file_is_right_for_the_model_that_it_came_from(tmp_path):
    torch.manual_seed(0)
    model = Stack(Block(), Block())
    found = recipe(model, inputs=inputs())
    assert found.holds
    norm, gate, up, down = (f"re:layers[.][0-9]+[.]{name}$" for name in ("norm", "gate", "up", "down"))
    assert pairs(found, "SmoothQuantModifier") == [(norm, (gate, up))]
    assert pairs(found, "AWQModifier") == [(norm, (gate, up)), (up, (down,))]
    assert pairs(found, "SpinQuantModifier") == []  # LayerNorms with biases
    path = tmp_path / "recipe.yaml"
    path.write_text(found.recipe, encoding="utf-8")
    again = check_recipe(model, path, inputs=inputs(seed=1))
    assert [each.verdict for each in again.mappings] == ["confirmed"] * 3
    assert [each.sets for each in again.mappings] == [2] * 3
    assert again.failure() is None


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [("skip", "its output is also the skip of"), ("up twice", None), ("up elsewhere", None)],
)
def test_what_else_reads_a_norm_or_a_layer_is_seen(tmp_path, wrong, reason):
    torch.manual_seed(0)
    model = Block(wrong)
    found = recipe(model, inputs=inputs())
    assert ("up", ("down",)) not in pairs(found, "AWQModifier") or wrong == "skip"
    path = smoothing(tmp_path / "recipe.yaml", (["gate", "up"], "norm"))
    row = check_recipe(model, path, inputs=inputs()).mappings[0]
    assert (row.verdict == "confirmed") == (reason is None)
    assert reason is None or (reason in row.reason and row.change > 0.01)


@pytest.mark.parametrize(
    ("readers", "norm", "verdict", "reason"),
    [
        (["gate", "up"], "norm", "confirmed", None),
        (["gate"], "norm", "changes the function", "it is also read by up"),
        (["gate", "up", "down"], "norm", "can't be applied", "different numbers of columns: gate 8, down 12"),
        (["up"], "down", "changes the function", "its output is read by"),
        (["down"], "gate", "changes the function", "its output is read by silu"),
        (["down"], "norm", "can't be applied", "norm has 8 outputs, and down 12 inputs"),
        (["re:.*proj"], "re:.*layernorm", "matches nothing", None),
        (["re:.*proj"], "norm", "can't be applied", "norm matches modules for which re:.*proj matches none"),
        (["gate", "re:g.*"], "norm", "can't be applied", "gate matches two of its patterns"),
        (["down"], "re:gate|up", "can't be applied", "matches 2 modules of one set"),
        (["gate", "up"], "", "can't be applied", None),
    ],
)
def test_every_mapping_gets_its_verdict(tmp_path, readers, norm, verdict, reason):
    torch.manual_seed(1)
    path = smoothing(tmp_path / "recipe.yaml", (readers, norm or "Block"))  # a class is a pattern too
    row = check_recipe(Block(), path, inputs=inputs()).mappings[0]
    assert row.verdict == verdict
    assert reason is None or reason in row.reason
    assert (row.change is None) == (verdict in ("can't be applied", "matches nothing"))
    assert row.change is None or (row.change <= 1e-9) == (verdict == "confirmed")


def test_the_change_is_that_of_the_module_with_its_parameters_changed_by_hand(tmp_path):
    torch.manual_seed(2)
    model = Block()
    path = smoothing(tmp_path / "recipe.yaml", (["gate"], "norm"))
    row = check_recipe(model, path, inputs=inputs()).mappings[0]
    scales = torch.exp(2 * torch.rand(SIZE, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 1) ** 2
    by_hand = copy.deepcopy(model).double()
    with torch.no_grad():
        by_hand.norm.weight /= scales
        by_hand.norm.bias /= scales
        by_hand.gate.weight *= scales
        before, after = (each(inputs()["x"].double()) for each in (model.double(), by_hand))
    assert row.change == pytest.approx(float((after - before).abs().max() / before.abs().max()), rel=1e-9)


class Plus(nn.Module):
    """RMSNorm with a gain stored as 1 + w, of a class that llm-compressor does not know."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(SIZE))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * (1 + self.weight)


@pytest.mark.parametrize(
    ("norm", "reason"),
    [
        (Plus(), "its gain is stored as 1 + w"),
        (type("GemmaRMSNorm", (Plus,), {})(), None),
        (nn.RMSNorm(SIZE, elementwise_affine=False), "no gain that could be divided"),
    ],
    ids=["1 + w", "1 + w, known", "no gain"],
)
def test_the_form_of_the_gain_decides(tmp_path, norm, reason):
    torch.manual_seed(3)
    model = nn.Sequential(norm, nn.Linear(SIZE, 5))
    given = {"input": torch.randn(2, 3, SIZE)}
    found = recipe(model, inputs=given)
    assert bool(pairs(found, "SmoothQuantModifier")) == (reason is None)
    assert reason is None or any(reason in each.reason for each in found.left_out)
    row = check_recipe(model, smoothing(tmp_path / "r.yaml", (["1"], "0")), inputs=given).mappings[0]
    assert row.verdict == {None: "confirmed", "its gain is stored as 1 + w": "changes the function"}.get(
        reason, "can't be applied"
    )


@pytest.mark.parametrize(("activation", "exact"), [(F.relu, True), (F.gelu, False), (torch.square, False)])
def test_positive_factors_pass_relu_and_nothing_else(activation, exact):
    class Plain(Block):
        def forward(self, x):
            return x + self.down(activation(self.up(self.norm(x))))

    torch.manual_seed(4)
    assert (("up", ("down",)) in pairs(recipe(Plain(), inputs=inputs()), "AWQModifier")) == exact


@given(st.lists(st.integers(0, 11), min_size=1, unique=True).map(sorted), st.booleans())
def test_patterns_stand_for_the_sets_that_they_were_made_for(layers, nested):
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.experts = nn.LayerNorm(2), nn.ModuleList(nn.Linear(2, 2) for _ in range(2 + nested))

    modules = quantizer_modules(nn.ModuleDict({"layers": nn.ModuleList(Layer() for _ in range(12))}))
    wanted = [
        (f"layers.{layer}.norm", tuple(f"layers.{layer}.experts.{number}" for number in range(2 + nested)))
        for layer in layers
    ]
    found = []
    for source, readers in patterns_for(modules, wanted):
        for each in matching_sets(modules, (source, *readers)):
            assert len(each[source]) == 1
            found.append((each[source][0].name, tuple(module.name for name in readers for module in each[name])))
    assert found == wanted


def test_a_set_that_is_not_complete_is_an_error():
    modules = quantizer_modules(Stack(Block(), nn.Linear(2, 2)))
    with pytest.raises(MappingError, match="matches none"):
        matching_sets(modules, ("re:layers.1", "re:.*norm.*x"))
    assert matching_sets(modules, ("a", "b")) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: [", "can't be read as YAML: line 1: expected the node content, but found '<stream end>'"),
        ("a: [1, 2\n b: {", "can't be read as YAML: line 2: expected ',' or ']', but got ':'"),
        ("- 1", "must have one of SmoothQuantModifier, AWQModifier, SpinQuantModifier"),
        ("a_stage: {a_modifiers: {GPTQModifier: {scheme: W4A16}}}", "got modifiers: GPTQModifier"),
        ("a_stage: {a_modifiers: {AWQModifier: {}}}", "must have a list of mappings, got None"),
        ("a_stage: {a_modifiers: {AWQModifier: {mappings: [[[a], b]]}}}", "must have smooth_layer and balance_layers"),
        ("a_stage: {a_modifiers: {SmoothQuantModifier: {mappings: [a]}}}", r"must be \[\[layers…\], norm\], got 'a'"),
        ("a_stage: {a_modifiers: {SmoothQuantModifier: {mappings: [[['re:('], b]]}}}", "must be a regular expression"),
        ("a_stage: {a_modifiers: {SmoothQuantModifier: {mappings: [[[3], b]]}}}", "must be the name of a module"),
        (
            "a_stage: {a_modifiers: {SpinQuantModifier: {norm_mappings: [{norm: a, linears: b}]}}}",
            "must have a transform_config",
        ),
        ("!!python/object/apply:os.system ['true']", "can't be read as YAML"),
    ],
)
def test_recipes_that_cannot_be_read_are_refused_in_one_line(tmp_path, content, message):
    path = tmp_path / "recipe.yaml"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=message) as caught:
        read_recipe(path)
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def llama():
    return random_model("llama")


def test_a_llama_can_be_smoothed_and_rotated_and_a_reader_left_out_shows(llama, tmp_path):
    found = recipe(llama)
    assert found.holds
    assert [each.source for each in found.mappings if each.modifier == "SpinQuantModifier"][-1] == "R1"
    assert [(each.source, each.modifier) for each in found.left_out] == [
        *((f"model.layers.{number}.self_attn.v_proj", "AWQModifier") for number in range(2)),  # grouped queries
        ("model.norm", "AWQModifier"),  # before the head
    ]
    assert "lm_head" not in str(yaml.safe_load(found.recipe)["awq_stage"])
    content = yaml.safe_load(found.recipe)
    settings = content["spinquant_stage"]["spinquant_modifiers"]["SpinQuantModifier"]
    settings["mappings"]["embedding"] = "re:.*embed_tokens$"
    settings["transform_config"]["config_groups"]["R1"]["apply"][1]["targets"].remove("lm_head")
    rows = check_recipe(llama, written(tmp_path / "r.yaml", "SpinQuantModifier", settings)).mappings
    assert [each.verdict for each in rows] == ["confirmed"] * 3 + ["changes the function"] * 2
    assert [each.reason for each in rows[3:]] == [
        "its rows lose their mean, and not all norms after it subtract it",
        "the stream is also read by lm_head",
    ]
    assert min(each.change for each in rows[3:]) > 0.01


def test_experts_are_layers_of_their_own_and_none_may_be_missing(tmp_path):
    model = random_model("qwen3_moe")
    readers = ["re:.*mlp.experts.[01].gate_proj$", "re:.*mlp.experts.[01].up_proj$", "re:.*mlp.gate$"]
    path = smoothing(
        tmp_path / "recipe.yaml",
        (readers, "re:.*post_attention_layernorm$"),
        ([name.replace("[01]", "[0-9]") for name in readers], "re:.*post_attention_layernorm$"),
        ([name.replace("[01]", "[0-9]") for name in readers[:2]], "re:.*post_attention_layernorm$"),
    )
    some, everything, no_router = check_recipe(model, path).mappings
    assert everything.verdict == "confirmed"
    assert some.verdict in ("changes the function", "not confirmed")
    assert "experts.2.up_proj" in some.reason
    assert no_router.verdict == "changes the function"
    assert "also read by model.layers.0.mlp.gate" in no_router.reason


def test_the_command_prints_a_recipe_and_ends_with_1_if_one_is_wrong(run_here, tmp_path):
    folder = tmp_path / "gemma2"
    random_model("gemma2").save_pretrained(folder)
    done = run_here("inspect", folder, "--recipe", "llm-compressor")
    assert done.returncode == 0, done.stderr
    assert "post_attention_layernorm" not in str(yaml.safe_load(done.stdout))
    assert "# Left out (SmoothQuantModifier, AWQModifier): model.layers.N.post_attention_layernorm" in done.stdout
    path = smoothing(tmp_path / "r.yaml", (["re:.*gate_proj", "re:.*up_proj"], "re:.*post_attention_layernorm"))
    wrong = run_here("inspect", folder, "--recipe", "llm-compressor", "--against", path, "--csv")
    assert wrong.returncode == 1
    assert "changes the function" in wrong.stdout
    assert "1 of 1 mappings would change the model" in wrong.stderr
    refused = run_here("inspect", folder, "--against", path)
    assert refused.returncode == 2
    assert "--against needs --recipe" in refused.stderr


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("recipes_tool", ROOT / "tools" / "recipes.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def kept(tool):
    return json.loads(tool.RESULTS.read_text(encoding="utf-8"))


def test_the_page_is_what_the_tool_writes_from_the_results(tool, kept):
    page = tool.PAGE.read_text(encoding="utf-8")
    assert f"{tool.CHECKED[0]}\n{tool.checked_table(kept)}\n{tool.CHECKED[1]}" in page
    assert f"{tool.RUN[0]}\n{tool.run_table(kept)}\n{tool.RUN[1]}" in page


def test_what_was_predicted_happened_there(tool, kept):
    """Verdicts on their mappings against what llm-compressor did; its models run partly in float32."""
    assert len(kept["models"]) >= 8
    for model in kept["models"]:
        for kind, modifier in tool.KINDS.items():
            verdicts = {row["verdict"] for row in model["checked"] if row["modifier"] == modifier}
            run = model["run"]["theirs"][kind]
            assert ("error" in run) == ("can't be applied" in verdicts)
            assert "error" in run or (run["change"] > 1e-3) == ("changes the function" in verdicts)
            assert "not confirmed" not in verdicts
        assert model["largest_change_of_ours"] <= 1e-9
        for run in model["run"]["ours"].values():
            assert run["change"] < 1e-5
            assert run["tensors_changed"] > 0
        for kind, modifier in tool.KINDS.items():
            assert (kind in model["run"]["ours"]) == bool(model["ours"][modifier])
