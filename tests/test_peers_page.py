"""docs/peers.md is made of the results beside it, and its runners show what a peer does, also where it is wrong."""

import doctest
import importlib.util
import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import normscope as ns
from architectures import random_model

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def runners_beside_each_other(monkeypatch):
    """Scripts of tools/peers import one another."""
    monkeypatch.syspath_prepend(str(ROOT / "tools" / "peers"))


def imported(name):
    spec = importlib.util.spec_from_file_location(f"peers_{name}", ROOT / "tools" / "peers" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def case():
    with pytest.MonkeyPatch.context() as settings:
        for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "TOKENIZERS_PARALLELISM"):
            settings.setenv(name, "1")  # set by the module too: put back afterwards
        yield imported("folding_case")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("peers") / "opt"
    random_model("opt").save_pretrained(place)
    save_file({"input_ids": torch.arange(12).reshape(2, 6)}, place / "inputs.safetensors")
    return place


def results():
    return json.loads((ROOT / "docs" / "results" / "peers.json").read_text(encoding="utf-8"))


def test_the_page_is_what_the_tool_writes_from_the_results():
    assert (ROOT / "docs" / "peers.md").read_text(encoding="utf-8") == imported("peers_page").page(results())


def test_a_peer_that_is_not_there_is_left_out_with_the_reason():
    found = results()
    columns = found["folding"]["columns"]
    for name in columns:
        if name.startswith(("llm-compressor", "auto-round")):
            columns[name] = {"left_out": "no matching distribution"}
    page = imported("peers_page").page(found)
    assert "- **llm-compressor**: no matching distribution." in page
    assert "| model | normscope | normscope --untie | transformer-lens |\n" in page
    assert "No peer of this table could be run." in page


def test_examples_of_the_page_maker_hold():
    for name, least in (("peers_page", 3), ("ranges_and_keys", 1)):
        done = doctest.testmod(imported(name))
        assert done.attempted > least
        assert done.failed == 0


def test_a_model_that_is_left_alone_is_the_same_function(case, folder):
    def fold(place):
        warnings.warn("nothing to do", stacklevel=1)
        return lambda: [case.loaded(place)] * 2

    row = case.row_of(folder, fold, {"OPTForCausalLM"})
    assert (row["norms"], row["folded"], row["difference"], row["agreement"]) == (5, 0, 0.0, 1.0)
    assert (row["tied_before"], row["tied_after"], row["listed"]) == (True, True, True)
    assert row["said"] == ["nothing to do"]
    assert 0 < row["float64_difference"] < 1e-5
    assert row["difference_with_own_table"] is None


def test_a_gain_that_is_dropped_changes_the_function(case, folder):
    def fold(place):
        model = case.loaded(place)
        torch.nn.init.ones_(model.model.decoder.final_layer_norm.weight)
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())
        return lambda: [model] * 2

    row = case.row_of(folder, fold, None)
    assert (row["folded"], row["biases_left"], row["tied_after"], row["listed"]) == (1, 1, False, None)
    assert row["difference"] > 0.1
    assert row["agreement"] < 1


def test_a_table_that_alone_is_wrong_is_shown_to_be_the_cause(case, folder):
    def fold(place):
        model = case.loaded(place)
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())
        with torch.no_grad():
            model.get_input_embeddings().weight.mul_(1.5)
        return lambda: [model] * 2

    row = case.row_of(folder, fold, None)
    assert row["difference"] > 0.1
    assert row["difference_with_own_table"] == 0


def test_where_a_peer_stops_its_words_are_kept(case, folder):
    def fold(place):
        print("looking for", place)
        raise KeyError("embed")

    row = case.row_of(folder, fold, set())
    assert (row["stopped"], row["said"], row["listed"]) == ("KeyError: 'embed'", ["looking for opt"], False)


def test_a_constant_added_to_all_logits_is_no_difference(case):
    logits = torch.randn(3, 7, generator=torch.Generator().manual_seed(0))
    assert case.difference(logits, logits + torch.tensor([[1.0], [2.0], [-3.0]])) < 1e-6
    assert case.difference(logits, logits + torch.arange(7)) > 0.1


def test_queries_are_checked_in_rational_numbers():
    cases = imported("key_cases")
    keys = np.array([[0, 0], [4, 0], [0, 4], [1, 1]], np.float32)
    result = ns.selectable(keys)
    assert [cases.wins_exactly(keys, None, result, key) for key in range(4)] == [True, True, True, False]
    moved = keys.copy()
    moved[0] = [3, 3]  # the query found for (0, 0) is none for this key
    assert not cases.wins_exactly(moved, None, result, 0)


def test_peers_that_nobody_named_are_left_out():
    found = results()
    del found["ranges"], found["unargmaxable"]
    page = imported("peers_page").page(found)
    assert "no Python that has it was named: it is left out" in page.replace("\n", " ")
    assert "| LayerNorm → Linear, 64 |" not in page


def test_attacks_leave_intervals_that_are_too_narrow_and_no_exact_ones():
    ranges, peer = imported("range_cases"), imported("normscope_ranges")
    made = ranges.cases({"tiny": ("layer", (6, 3, 0), (1, 6))}, seed=3)
    claimed = [peer.bounds(case) for case in made]
    assert [len(each["normscope"]["lows"]) for each in claimed] == [3] * 8
    rows = ranges.rows_of(made, [{"rows": claimed}])
    assert all(row["methods"]["normscope"]["passed"] == 0 for row in rows)
    assert [row["methods"]["normscope"]["ratio"] for row in rows[:4]] == pytest.approx([1] * 4, abs=1e-4)
    narrow = claimed[1]["normscope"] | {"highs": claimed[1]["normscope"]["lows"]}
    assert ranges.judged(narrow, ranges.attacked(made[1]))["passed"] == 3
    nothing = claimed[1]["normscope"] | {"highs": [float("nan")] * 3}
    assert ranges.judged(nothing, ranges.attacked(made[1]))["without"] == 3


def test_what_the_page_says_of_ranges_is_what_the_results_say():
    rows = results()["ranges"]["rows"]
    for row in rows:
        methods = row["methods"]
        assert methods["normscope"]["passed"] == 0
        assert not any(methods[name].get("passed") for name in methods if name != "IBP")
        if not row["box"] and "GELU" not in row["model"]:
            assert (methods["IBP"]["width"], methods["IBP"]["passed"]) == (0, row["outputs"])
        sound = [each["ratio"] for name, each in methods.items() if "normscope" not in name
                 and each.get("ratio") is not None and each["passed"] == 0]  # fmt: skip
        if row["relative"] in (0.5, None):
            assert methods["normscope"]["ratio"] < min(sound)
        if row["relative"] == 0.01 and (row["box"] or "Linear" not in row["model"]):
            assert methods["CROWN"]["ratio"] < methods["normscope"]["ratio"]


def test_what_the_page_says_in_words_is_what_the_results_say():
    found, page = results(), imported("peers_page")
    outcomes = {
        name: {model: page.outcome(row) for model, row in column["models"].items()}
        for name, column in found["folding"]["columns"].items()
    }
    assert all(row["holds"] for row in found["keys"]["rows"])
    assert set(outcomes["normscope"].values()) == {"same"}
    assert {model for model, what in outcomes["normscope --untie"].items() if what != "same"} == {"bert"}
    assert "changed" not in outcomes["transformer-lens"].values()
    for name in ("auto-round", "auto-round, SpinQuant"):
        assert {outcomes[name][model] for model in ("llama", "qwen3", "SmolLM2-135M")} == {"same"}
    seconds = [found["folding"]["columns"][name]["models"]["SmolLM2-135M"]["cpu_seconds"]
               for name in ("normscope", "transformer-lens")]  # fmt: skip
    assert seconds[0] > seconds[1]
    tiny, real = (found["folding"]["columns"]["llm-compressor"]["models"][name] for name in ("llama", "SmolLM2-135M"))
    assert tiny["agreement"] < real["agreement"] < 1
