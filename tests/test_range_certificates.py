"""Files of ranges, altered in one place at a time: `verify` refuses them, or they still prove what they say."""

import copy
import json
from dataclasses import fields, is_dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn

import normscope as ns
from normscope.bounds.tight_bound import tight
from normscope.certificates import check_ranges, range_certificates, range_formulas
from normscope.certificates.neuron_certificates import Neurons
from normscope.certificates.range_certificates import Matrix
from normscope.errors import InputError
from normscope.models.range_tensors import reread
from normscope.models.subject import Subject
from normscope.progress import silent
from normscope.results.describe import NOT_IN_JSON
from normscope.results.layer_ranges import TYPES
from normscope.results.result import load_bytes
from normscope.studies.ranges import RangeSearch, ranges
from oracles import dense_factor
from tiny_models import build

HOSTILE = "<b>[red]\x1b[2J{0.country}\n" * 99
NAMES = ("llama", "gpt2", "bert")


@pytest.fixture(scope="module", params=NAMES)
def found(request):
    """A model with random gains and biases, its ranges as loaded from a file, and its tensors, read again."""
    model = build(request.param).eval()
    subject = Subject(model)
    result = RangeSearch(subject, "float32", TYPES["float32"], tight=1).result(silent)
    result = load_bytes(result.to_bytes(), "it")
    return model, result, reread(result, subject)


def verdict(result, tensors):
    """Whether an altered result is accepted, and why; loading it would refuse some of them before."""
    return check_ranges.check(result, against=tensors)


def refused(result, tensors):
    holds, reason = verdict(result, tensors)
    assert len(reason) < 500
    assert "\n" not in reason
    return not holds


def with_certificate(result, place, **changes):
    changed = list(result.certificates)
    changed[place] = replace(changed[place], **changes)
    return replace(result, certificates=tuple(changed))


def with_row(result, place, **changes):
    changed = list(result.layers)
    changed[place] = replace(changed[place], **changes)
    return replace(result, layers=tuple(changed))


def place_of(result, kind):
    return next(at for at, each in enumerate(result.certificates) if each.kind == kind)


def row_of(result, certificate):
    return next(at for at, row in enumerate(result.layers) if row.layer == certificate.layer)


def moved(array, at, by):
    other = array.copy()
    other[at] += by
    return other


def reaches(model, certificate):
    """What the layer's module gives for the stored input, by the modules themselves."""
    modules, seen = dict(model.double().named_modules()), {}
    hook = modules[certificate.layer].register_forward_hook(lambda _, __, y: seen.update(y=y))
    norm = modules[certificate.norm].register_forward_pre_hook(
        lambda _, args: (torch.from_numpy(certificate.input.copy()).expand(args[0].shape), *args[1:])
    )
    with torch.no_grad():
        model(torch.zeros(1, 3, dtype=torch.long))
    hook.remove()
    norm.remove()
    model.float()
    return certificate.sign * float(seen["y"][0, 0, certificate.channel])


def row_by_definition(tensors, proof):
    matrix = tensors.tensor(proof.matrix.weight).double().numpy()
    return (matrix.T if proof.matrix.transposed else matrix)[proof.channel]


def neurons_by_definition(tensors, proof, activation):
    """Neurons of the unit ball, with √N·G·Π as a matrix."""
    norm, parts = tensors.norm(proof.norm), []
    for reader in (proof.gate, proof.up):
        if reader is None:
            continue
        matrix = tensors.tensor(reader.matrix.weight).double().numpy()
        weights = (matrix.T if reader.matrix.transposed else matrix)[reader.rows]
        bias = 0.0 if reader.bias is None else tensors.tensor(reader.bias).double().numpy()[reader.rows]
        parts += [weights @ dense_factor(norm), weights @ norm.bias + bias]
    return Neurons(activation, *parts)


def test_a_file_holds_and_its_arrays_survive(found):
    _, result, tensors = found
    holds, reason = check_ranges.check(result, against=tensors)
    assert holds, reason
    assert "have no certificate" in reason
    kinds = {each.kind for each in result.certificates}
    assert kinds == {"exact", "quadratic"}
    for each in result.certificates:
        assert each.input.dtype == np.float64
        assert each.gate is None or each.gate.rows.dtype == np.int64
    assert load_bytes(result.to_bytes(), "it").to_bytes() == result.to_bytes()
    hostile = with_certificate(with_row(result, 0, layer=HOSTILE), 0, layer=HOSTILE, norm=HOSTILE)
    assert load_bytes(hostile.to_bytes(), "it") == hostile
    assert refused(hostile, tensors)


def test_what_a_certificate_says_is_reached_is_what_the_modules_give(found):
    model, result, _ = found
    for certificate in result.certificates:
        if certificate.kind != "exact" or certificate is result.certificates[0]:
            assert reaches(model, certificate) == pytest.approx(certificate.reached, rel=1e-5)  # of float32 gains


def test_a_bound_that_is_lowered_and_multipliers_that_are_altered_prove_nothing(found):
    _, result, tensors = found
    at = place_of(result, "quadratic")
    proof = result.certificates[at]
    lower = proof.bound - 1e-6 * abs(proof.bound)
    assert refused(with_certificate(result, at, bound=lower), tensors)
    assert refused(with_certificate(result, at, bound=lower, lam=proof.lam - 1e-6 * abs(proof.bound)), tensors)
    assert refused(with_certificate(result, at, bound=lower, s=proof.s - 1e-6 * abs(proof.bound)), tensors)
    assert refused(with_certificate(result, at, lam=proof.lam * 0.99), tensors)
    assert refused(with_certificate(result, at, lam=-1.0), tensors)
    assert refused(with_certificate(result, at, s=proof.s + abs(proof.bound)), tensors)
    assert refused(with_certificate(result, at, s=proof.s - 0.01 * abs(proof.bound)), tensors)
    for name in ("first", "second"):
        array = getattr(proof, name)
        for other in (array[:-1], None, array.astype(np.float32), np.full_like(array, np.nan), -array):
            if not (name == "second" and array.size == 0 and other is not None and other.dtype == array.dtype):
                assert refused(with_certificate(result, at, **{name: other}), tensors)
        if array.size:  # all at once: a single one may be changed so that it still proves the bound
            assert refused(with_certificate(result, at, **{name: 1.5 * array}), tensors)
    assert refused(with_certificate(result, at, kind="intervals"), tensors)
    assert refused(with_certificate(result, at, kind="exact"), tensors)


def test_a_larger_bound_is_still_proved_but_contradicts_its_row(found):
    _, result, tensors = found
    at = place_of(result, "quadratic")
    proof = result.certificates[at]
    assert refused(with_certificate(result, at, bound=proof.bound * 1.001), tensors)


def test_a_certificate_for_another_output_is_refused(found):
    _, result, tensors = found
    for kind in ("quadratic", "exact"):
        at = place_of(result, kind)
        proof = result.certificates[at]
        for changes in (
            {"sign": -proof.sign},
            {"channel": proof.channel + 1},
            {"channel": -1},
            {"channel": 10**9},
            {"shift": proof.shift + 1e-9},
            {"bias": None if proof.bias is not None else "x"},
            {"factor": 1.0001},
            {"factor": float("inf")},
            {"norm": result.certificates[at - 1].norm + "x"},
            {"norm": next(each.norm for each in result.certificates if each.norm != proof.norm)},
            {"layer": "x"},
            {"matrix": replace(proof.matrix, transposed=not proof.matrix.transposed)},
            {"matrix": replace(proof.matrix, expert=0)},
            {"matrix": Matrix("x", False)},
            {"activation": "tanh"},
            {"reached": proof.reached * 1.0001},
            {"reached": proof.bound * 1.1},
            {"input": proof.input[:-1]},
            {"input": None},
            {"input": moved(proof.input, 0, 0.01 * np.abs(proof.input).max())},
        ):
            assert refused(with_certificate(result, at, **changes), tensors), changes


def test_readers_of_neurons_cannot_be_altered(found):
    _, result, tensors = found
    at = place_of(result, "quadratic")
    proof = result.certificates[at]
    for name in ("gate", "up"):
        reader = getattr(proof, name)
        if reader is None:
            continue
        rows, scale = reader.rows, reader.scale
        largest = int(np.argmax(np.abs(proof.first)))
        swapped = rows.copy()
        swapped[[0, 1]] = swapped[[1, 0]]
        for changes in (
            {"rows": rows[::-1].copy()},
            {"rows": swapped},
            {"rows": rows - 1},
            {"rows": rows + 1},
            {"rows": rows[:-1]},
            {"rows": rows.astype(np.float64)},
            {"rows": None},
            {"scale": scale * 0.999},
            {"scale": moved(scale, largest, 0.01)},
            {"scale": None},
            {"bias": None if reader.bias is not None else "x"},
            {"matrix": replace(reader.matrix, transposed=not reader.matrix.transposed)},
            {"matrix": proof.matrix},
        ):
            assert refused(with_certificate(result, at, **{name: replace(reader, **changes)}), tensors), changes
        assert refused(with_certificate(result, at, **{name: None}), tensors)
    if proof.up is not None:  # a gate in place of what it multiplies
        assert refused(with_certificate(result, at, gate=proof.up, up=proof.gate), tensors)


def test_tensors_of_other_layers_are_refused(found):
    """Certificates of two layers with each other's tensors, although each proves something about some layer."""
    _, result, tensors = found
    alike = [at for at, each in enumerate(result.certificates) if each.kind == "quadratic"]
    one, other = (result.certificates[at] for at in alike[:2])
    assert refused(with_certificate(result, alike[0], layer=other.layer), tensors)
    assert refused(with_certificate(result, alike[0], gate=other.gate, up=other.up, norm=other.norm), tensors)
    renamed = replace(other, layer=one.layer)
    changed = [renamed if at == alike[0] else each for at, each in enumerate(result.certificates)]
    assert refused(replace(result, certificates=tuple(changed)), tensors)


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
def test_a_proof_with_another_activation_is_not_about_this_model(found, activation):
    """All numbers are made anew for the other activation, so that only the model itself contradicts them."""
    _, result, tensors = found
    at = place_of(result, "quadratic")
    proof = result.certificates[at]
    if proof.activation == activation:
        pytest.skip("it is this one")
    norm = tensors.norm(proof.norm)
    neurons, row = neurons_by_definition(tensors, proof, activation), proof.sign * row_by_definition(tensors, proof)
    made = tight(neurons, row)
    value = range_formulas.output_of(neurons, row, range_formulas.direction_of(norm, proof.input)).value
    shift = proof.sign * proof.shift
    certificate = made.certificate
    forged = replace(
        proof,
        activation=activation,
        bound=float(np.nextafter(made.bound + shift, np.inf)),
        reached=value + shift,
        kind=certificate.kind,
        lam=certificate.lam,
        s=certificate.s,
        first=certificate.first,
        second=certificate.second,
    )
    holds, reason = verdict(with_certificate(result, at, **vars(forged)), tensors)
    assert not holds
    assert "the model gives" in reason


def test_rows_agree_with_their_arrays_and_certificates(found):
    _, result, tensors = found
    proofs = {each.layer: each for each in result.certificates}
    for place, row in enumerate(result.layers):
        for changes in (
            {"low": row.low * 0.99},
            {"high": row.high * 0.99},
            {"bound": row.bound * 0.99},
            {"bound": -row.bound},
            {"channel": (row.channel + 1) % row.channels},
            {"channels": row.channels + 1},
            {"lows": None},
            {"highs": row.highs[:-1]},
            {"highs": row.highs.astype(np.float32)},
            {"lows": moved(row.lows, 0, np.nan)},
            {"grade": None},
            {"verdict": "unbounded"},
            {"verdict": "reached"},
            {"why": "x"},
            {"reached": 1.1 * row.bound},
        ):
            symmetric = changes == {"bound": -row.bound} and row.low == -row.high and row.grade != "exact"
            assert symmetric or refused(with_row(result, place, **changes), tensors), (row.layer, changes)
        if place in (1, 3) and row.grade == "exact" and row.layer in proofs:
            for changes in (
                {"grade": "tight"},
                {"lows": moved(row.lows, np.argmax(row.lows), -1e-9), "low": row.low},
                {"highs": moved(row.highs, np.argmin(row.highs), 1e-9)},
                {"reached": row.reached * 0.999},
                {"input": row.input[::-1].copy()},
                {"grade": "heads"},
                {"weight": "x"},
                {"norm": "x"},
            ):
                assert refused(with_row(result, place, **changes), tensors), (row.layer, changes)


def test_bounds_of_single_outputs_are_not_smaller_than_proved(found):
    _, result, tensors = found
    proof = result.certificates[place_of(result, "quadratic")]
    place = row_of(result, proof)
    row = result.layers[place]
    lows, highs = row.lows.copy(), row.highs.copy()
    (highs if proof.sign > 0 else lows)[proof.channel] *= 0.999
    assert refused(with_row(result, place, lows=lows, highs=highs), tensors)


def test_a_tight_row_is_what_its_certificate_proves():
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 9), nn.GELU(), nn.Linear(9, 3)).double()
    nn.init.normal_(model[0].weight)
    nn.init.normal_(model[0].bias)
    subject = Subject(model, inputs=torch.zeros(1, 4).double())
    result = ranges(model, inputs=torch.zeros(1, 4).double(), tight="all")
    tensors = reread(result, subject)
    assert verdict(result, tensors)[0]
    place = next(at for at, row in enumerate(result.layers) if row.grade == "tight")
    row = result.layers[place]
    farther = row.bound * 1.01
    lows, highs = row.lows.copy(), row.highs.copy()
    (highs if row.bound > 0 else lows)[row.channel] = farther
    low, high = lows.min(), highs.max()
    assert refused(with_row(result, place, bound=farther, lows=lows, highs=highs, low=low, high=high), tensors)
    assert refused(with_row(result, place, reached=0.9 * row.reached), tensors)
    assert refused(with_row(result, place, input=-row.input), tensors)
    assert refused(replace(result, certificates=()), tensors)
    # Without inputs nothing is traced: the proofs hold, and the reason says what they rest on.
    holds, reason = verdict(result, reread(result, model))
    assert holds
    assert "is not checked" in reason


class Groups(nn.Module):
    """LN-G."""

    def __init__(self):
        super().__init__()
        self.gain, self.shift = nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(6))

    def forward(self, x):
        parts = x.reshape(*x.shape[:-1], 2, 3)
        parts = parts - parts.mean(-1, keepdim=True)
        return (parts / (parts.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()).reshape(x.shape) * self.gain + self.shift


class Shifted(nn.Module):
    """A layer that adds its bias in a second step, and something else to what it read."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(inputs, outputs)), nn.Parameter(0.01 * torch.randn(outputs))

    def forward(self, x):
        return x @ self.weight + self.bias


class Moved(nn.Module):
    def forward(self, t):
        return t + 0.5


class Scaled(nn.Module):
    def forward(self, y):
        return y * 0.25


@pytest.mark.parametrize(
    ("layers", "kinds"),
    [
        ((Groups, lambda: nn.Linear(6, 8), nn.SiLU, lambda: nn.Linear(8, 3)), ["exact", "quadratic"]),
        ((lambda: nn.RMSNorm(6), lambda: Shifted(6, 8), nn.ReLU, lambda: Shifted(8, 3)), ["exact"]),
        ((lambda: nn.LayerNorm(6), lambda: nn.Linear(6, 8), Moved, nn.Tanh, lambda: nn.Linear(8, 3)), ["exact"]),
        ((lambda: nn.LayerNorm(6), Scaled, lambda: nn.Linear(6, 8)), []),
    ],
    ids=["groups", "bias in a second step", "shifted before the activation", "scaled before the layer"],
)
def test_what_has_no_certificate_is_left_out_and_the_rest_holds(layers, kinds):
    torch.manual_seed(1)
    model = nn.Sequential(*(layer() for layer in layers)).double()
    subject = Subject(model, inputs=torch.zeros(1, 6).double())
    result = RangeSearch(subject, "float32", TYPES["float32"], tight=1).result(silent)
    assert result.holds
    assert [each.kind for each in result.certificates] == kinds
    holds, reason = verdict(load_bytes(result.to_bytes(), "it"), reread(result, subject))
    assert holds, reason
    for row in result.layers:
        assert row.lows[row.channel] <= row.reached <= row.highs[row.channel]


def test_counts_for_the_limit_agree_with_the_rows(found):
    _, result, tensors = found
    limit = result.limit
    for changes in (
        {"largest": limit.largest * 2},
        {"type": "float16"},
        {"type": "x"},
        {"tensors": limit.tensors + 1},
        {"excluded": limit.excluded - 1},
        {"excluded": limit.excluded - 500, "open": limit.open + 500},
        {"excluded": limit.excluded + 1, "reached": limit.reached - 1},
    ):
        assert refused(replace(result, limit=replace(limit, **changes)), tensors), changes


def test_another_model_is_refused(found):
    model, result, tensors = found
    other = copy.deepcopy(model)
    name = next(each.matrix.weight for each in result.certificates if each.kind == "quadratic")
    with torch.no_grad():
        dict(other.named_parameters())[name].mul_(1.01)
    assert not check_ranges.check(result, against=reread(result, other))[0]
    assert refused(replace(result, model="x"), tensors)


def test_the_bundled_model_is_found_again(tmp_path):
    path = tmp_path / "ranges.safetensors"
    result = ranges(ns.demo_model(), tight=1, limit="float32")
    assert {each.kind for each in result.certificates} == {"exact", "quadratic"}
    result.save(path)
    assert ns.verify(path).holds
    assert ns.verify(path, against=ns.demo_model()).holds
    replace(result, model="another").save(path, force=True)
    assert not ns.verify(path).holds
    with pytest.raises(InputError, match="label"):
        ns.verify(path, label="x")


def test_ranges_of_a_module_need_the_module(tmp_path):
    path = tmp_path / "ranges.safetensors"
    model = nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 2))
    result = ranges(model, inputs=torch.zeros(1, 3))
    result.save(path)
    with pytest.raises(InputError, match="pass the model"):
        ns.verify(path)
    assert ns.verify(path, against=model).holds
    with pytest.raises(InputError, match=r"use normscope\.verify"):
        check_ranges.check(result)


def test_arrays_are_left_out_of_the_json(found):
    _, result, _ = found
    assert range_certificates.HIDDEN == NOT_IN_JSON

    def arrays(value):
        if isinstance(value, np.ndarray):
            return True
        if is_dataclass(value):
            return any(arrays(getattr(value, each.name)) for each in fields(value))
        return isinstance(value, tuple) and any(map(arrays, value))

    assert arrays(result.certificates)
    assert "first" not in json.dumps(result.to_dict()["certificates"])
