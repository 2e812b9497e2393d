"""Names of modules on a terminal: shortened in the middle so that rows do not wrap; full everywhere else."""

import io
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from normscope import demo_model, inspect, keys
from normscope.data import sample_text
from normscope.report.terminal import as_csv, as_text, short_names, show
from normscope.results.finding_list import Finding, FindingList
from normscope.results.folding import Decision, Folding, NormVerdict
from normscope.results.inspection import Inspection, NormGeometry
from normscope.results.inventory import FoundNorm
from normscope.results.layer_ranges import LayerRanges, Limit, TensorRange

WORDS = st.sampled_from(["model", "layers", "0", "7", "11", "input_layernorm", "post_attention_layernorm", "norm"])
NAMES = st.lists(st.lists(WORDS, min_size=1, max_size=6).map(".".join), min_size=1, max_size=8)


def llama(layers):
    parts = ("input_layernorm", "post_attention_layernorm")
    return [*(f"model.layers.{layer}.{part}" for layer in range(layers) for part in parts), "model.norm"]


@given(NAMES, st.integers(4, 60))
def test_short_names_fit_and_stay_different_or_are_all_unchanged(names, width):
    short = short_names(names, width)
    assert len(set(zip(names, short, strict=True))) == len(set(names)) == len(set(short))
    if short != names:
        assert max(map(len, short)) <= width
    for name, other in zip(names, short, strict=True):
        if len(name) <= width:
            assert other == name


@pytest.mark.parametrize("width", range(20, 45))
def test_the_number_of_a_layer_and_the_end_of_a_name_stay(width):
    names = llama(81)
    for name, short in zip(names, short_names(names, width), strict=True):
        assert short.endswith(name[-5:])
        assert len(short) <= width
        if name != "model.norm":
            number = name.split(".")[2]
            assert number in short.replace("…", ".").split(".")


def test_names_that_differ_only_in_the_middle_stay_whole():
    names = [f"{word}{40 * 'a'}.{40 * 'b'}{word}{40 * 'b'}.norm" for word in ("x", "y")]
    names = [name[1:] for name in names]
    assert short_names(names, 20) == names


def shown(width, *, terminal=True, everything=False):
    norms = [
        NormGeometry(FoundNorm(name, "rmsnorm", 576, path=name, module="Norm", unchecked=None)) for name in llama(12)
    ]
    result = Inspection("a model", None, None, False, 1, 1, tuple(norms), None, None, ())
    console = Console(width=width, file=io.StringIO(), force_terminal=terminal, color_system=None)
    show(result, console, everything=everything)
    return result, console.file.getvalue()


@pytest.mark.parametrize("width", [80, 100, 120])
def test_every_norm_is_one_row_of_a_terminal(width):
    _, text = shown(width)
    rows = [line for line in text.splitlines() if "rmsnorm" in line]
    assert len(rows) == 25
    assert max(map(len, text.splitlines())) <= width
    starts = [row.split()[0] for row in rows]
    assert len(set(starts)) == 25
    after = text.split("model.norm")[1].splitlines()
    assert not any(line.strip().startswith("layernorm") for line in after)


@pytest.mark.parametrize("width", [80, 100, 120])
def test_tables_of_ranges_and_folds_do_not_wrap_names_nor_the_path_of_the_model(width):
    path = "/a/folder/with/a/long/name/and/another/one/SmolLM2-135M-Instruct.Q4_1.gguf"
    decided = Decision("nothing to fold", "no mean"), Decision("folded", "gain into q_proj")
    fold = Folding(path, tuple(NormVerdict(name, "rmsnorm", *decided) for name in llama(12)), (), None, (), ())
    far = [TensorRange(name, "norm input", 576, -28830.0, 28270.0, 507, -28830.0, None, "intervals", "excluded")
           for name in llama(12)]  # fmt: skip
    bounds = LayerRanges(path, None, Limit("float16", 65504.0, 1, 1, 0, 0, 0, 0), (), tuple(far), ())
    for result, word in ((fold, "rmsnorm"), (bounds, "norm input")):
        console = Console(width=width, file=io.StringIO(), force_terminal=True, color_system=None)
        show(result, console)
        lines = console.file.getvalue().splitlines()
        assert len({line.split()[0] for line in lines if word in line}) == (25 if result is fold else 24)
        assert max(map(len, lines)) <= width
        assert sum("SmolLM2-135M-Instruct.Q4_1.gguf" in line for line in lines) == 1
        assert not any(line.strip() in ("rm", "orm", "norm") for line in lines)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_names_in_a_reason_are_one_word_and_only_as_short_as_they_must_be(width):
    names = [f"encoder.layer.{layer}.attention.output.LayerNorm" for layer in range(12)]
    moved = Decision("folded", "gain into q_proj")
    verdicts = [NormVerdict(name, "layernorm", Decision("kept", f"{name} writes to it"), moved) for name in names]
    console = Console(width=width, file=io.StringIO(), force_terminal=True, color_system=None)
    show(Folding("m", tuple(verdicts), (), None, (), ()), console)
    text = console.file.getvalue().split("because")[1]
    assert max(map(len, text.splitlines())) <= width
    words = [word for word in text.split() if "layer" in word or "…" in word]
    assert len(words) == 2 * 12  # the norm, and its name in its reason
    assert all(word.endswith("orm") for word in words)
    assert len(set(words)) == (12 if width == 120 else 24)


@pytest.mark.parametrize("width", [70, 80, 100])
def test_names_stay_legible_where_another_column_can_have_a_table_of_its_own(inspected, width):
    console = Console(width=width, file=io.StringIO(), force_terminal=True, color_system=None)
    longer = [replace(norm, found=replace(norm.found, name=f"{norm.found.name}_with_more_of_it"))
              for norm in inspected.norms]  # fmt: skip
    show(replace(inspected, norms=tuple(longer)), console)
    starts = [line.split()[0] for line in console.file.getvalue().splitlines() if "_it  " in line]
    assert starts
    assert min(map(len, starts)) >= 18


@pytest.fixture(scope="module")
def inspected():
    return inspect(demo_model(), text=sample_text()[:300])


def test_the_heading_of_a_text_is_wrapped_before_names_are_illegible():
    console = Console(width=70, file=io.StringIO(), force_terminal=True, color_system=None)
    show(keys(demo_model(), text=sample_text()[:300]), console)
    lines = console.file.getvalue().split("Queries nearest")[1].splitlines()
    assert max(map(len, lines)) <= 70
    assert sum("transformer.h." in line for line in lines) == 2 * 4  # two tables of four layers
    assert not any("heads that can produce it" in line for line in lines)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_columns_without_room_get_a_table_of_their_own(inspected, width):
    console = Console(width=width, file=io.StringIO(), force_terminal=True, color_system=None)
    show(inspected, console)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    tables = sum(line.startswith(" ─") for line in lines)
    assert tables == {60: 3, 80: 2, 120: 1}[width]
    rows = [line for line in lines if line.startswith(" ") and line.split()[-1:] and line.split()[-1][0].isdigit()]
    assert len(rows) == 9 * tables
    assert all(len(row.split()) > 1 for row in rows)
    for word in ("effective", "closeness", "share"):
        assert word in console.file.getvalue()


def test_the_path_in_a_command_is_one_word_however_narrow_the_terminal():
    path = f"/{'a-long/' * 12}model.gguf"
    words = [f"{what} is far from what it is elsewhere, by 3.5 times." for what in ("The title", "The evidence", "Why")]
    finding = Finding(
        "NS102", "massive-activation", "warning", "seen on the text", *words, f"normscope spikes {path}", "x"
    )
    console = Console(width=60, file=io.StringIO(), force_terminal=True, color_system=None)
    show(FindingList(path, (finding,)), console)
    lines = console.file.getvalue().splitlines()
    assert sum(line.strip() == path for line in lines) == 1
    assert all(len(line) <= 60 for line in lines if path not in line)


@pytest.mark.parametrize("width", [40, 80, 100])
def test_names_are_one_word_where_there_is_no_terminal(width):
    path = "/a/folder/with/a/long/name/and/another/one/SmolLM2-135M-Instruct.Q4_1.gguf"
    far = [TensorRange(name, "norm input", 576, -28830.0, 28270.0, 507, -28830.0, None, "a few words " * 9, "excluded")
           for name in llama(12)]  # fmt: skip
    result = LayerRanges(path, None, Limit("float16", 65504.0, 1, 1, 0, 0, 0, 0), (), tuple(far), ())
    console = Console(width=width, file=io.StringIO(), color_system=None)
    show(result, console)
    lines = console.file.getvalue().splitlines()
    assert {line.split()[0] for line in lines if "norm input" in line} == set(llama(12)[:24])  # and 1 more
    assert sum(path in line for line in lines) == 1


def test_names_are_full_where_there_is_no_terminal_and_with_all_columns():
    result, text = shown(80, terminal=False)
    _, everything = shown(80, everything=True)
    for output in (text, everything, as_text(result), as_csv(result)):
        assert "…" not in output
    assert all(name in as_csv(result) and name in as_text(result) for name in llama(12))
