"""Networks of LayerNorms that memorise: every certificate is checked again by other means, and the module by itself."""

import subprocess
import sys

import jsonschema
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import normscope as ns
from normscope.capacity import LNNet, memorize
from normscope.capacity.samples import checked_samples
from normscope.certificates.check_networks import figures
from test_creases import mp_scores

seeds = st.integers(0, 2**32 - 1)


def random_task(seed, count, classes, channels=1):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, count)
    labels[:classes] = np.arange(classes)
    return rng.random((count, channels)), labels


def right(net, samples, labels):
    """Samples that 80 digits give the right class, by a calculation that shares no code with the certificate."""
    found = [int(np.argmax([float(score) for score in mp_scores(net.network.module, sample)])) for sample in samples]
    return sum(net.network.classes[place] == label for place, label in zip(found, labels, strict=True))


@settings(max_examples=20, deadline=None)
@given(seed=seeds, count=st.integers(4, 40), classes=st.integers(2, 4), channels=st.integers(1, 4))
def test_any_samples_are_memorised_and_certified(seed, count, classes, channels):
    samples, labels = random_task(seed, count, classes, channels)
    net = memorize(samples, labels, seed=seed)
    assert net.holds
    assert net.method == "search"
    assert net.float_right == count
    assert (net.network.predict(samples) == labels).all()
    assert right(net, samples, labels) == count
    assert net.depth <= net.paper_depth
    assert net.least_depth is None or net.depth >= net.least_depth


def test_the_module_is_plain_torch():
    net = memorize(*random_task(0, 30, 3), eps=1e-5)
    kinds = [type(layer) for layer in net.network.module]
    assert isinstance(net.network, LNNet)
    assert type(net.network.module) is nn.Sequential
    assert kinds == [nn.Linear, nn.LayerNorm] * net.depth + [nn.Linear]
    assert {(norm.normalized_shape, norm.elementwise_affine, norm.eps) for norm in net.network.module[1::2]} == {
        ((3,), False, 1e-5)
    }
    assert (net.network.module[0].in_features, net.network.module[-1].out_features, net.width) == (1, 3, 3)
    assert all(parameter.dtype == torch.float64 for parameter in net.network.module.parameters())


@pytest.mark.parametrize(
    ("dtype", "eps"), [("float32", 0.0), (torch.float32, 1e-5), ("float64", 1e-5), ("float64", 0.1)]
)
def test_a_hundred_random_labels(dtype, eps):
    samples, labels = random_task(3, 100, 2)
    net = memorize(samples, labels, dtype=dtype, eps=eps)
    assert (net.certified, net.float_right) == (100, 100)
    assert (net.network.predict(samples) == labels).all()
    assert net.depth <= 13
    assert str(net.network.module[0].weight.dtype).endswith(str(dtype)[-7:])


def test_many_classes():
    samples, labels = random_task(5, 80, 10)
    net = memorize(samples, labels)
    assert (net.certified, len(net.classes), net.least_depth) == (80, 10, None)


def test_the_same_seed_gives_the_same_network():
    samples, labels = random_task(1, 60, 2)
    one, other, another = (memorize(samples, labels, seed=seed) for seed in (4, 4, 5))
    assert all(
        torch.equal(a, b)
        for a, b in zip(one.network.module.parameters(), other.network.module.parameters(), strict=True)
    )
    assert not torch.equal(one.network.module[0].weight, another.network.module[0].weight)


def test_labels_that_are_in_two_pieces_need_no_layer_norm():
    net = memorize([[0.0], [1.0], [2.0]], [False, False, True])
    assert (net.depth, net.least_depth, net.network.predict([2.0]), net.network.predict([[0.5]]).tolist()) == (
        0,
        0,
        True,
        [False],
    )


@pytest.mark.parametrize("method", ["search", "merge"])
@pytest.mark.parametrize("scale", [1e-300, 1e-9, 1e9, 1e300])
def test_huge_and_tiny_samples(method, scale):
    samples, labels = random_task(2, 25, 2, channels=2)
    net = memorize(samples * scale, labels, method=method)
    assert net.holds
    assert (net.network.predict(samples * scale) == labels).all()


@pytest.mark.parametrize("method", ["search", "merge"])
def test_copies_with_one_label_and_constant_channels_are_fine(method):
    samples, labels = random_task(6, 12, 2, channels=3)
    samples[:, 1] = 7.0
    samples, labels = np.concatenate([samples, samples[:5]]), np.concatenate([labels, labels[:5]])
    assert memorize(samples, labels, method=method).holds


def test_minus_zero_is_zero():
    assert memorize([[0.0], [-0.0], [1.0]], [0, 0, 1]).holds
    with pytest.raises(ValueError, match=r"equal rows \(from 0\): 0 \(0\) and 1 \(1\)"):
        memorize([[0.0], [-0.0], [1.0]], [0, 1, 1])


@pytest.mark.parametrize(
    "labels",
    [
        ["no", "yes"],
        [-1, 1],
        [0.5, 2.5],
        [False, True],
        np.array([9223372036854775813, 9223372036854775815], np.uint64),
        np.array([-128, 127], np.int8),
        np.array([0.1, 0.3], np.float16),
        np.array([1, 2], ">i4"),
        ["²", "\ud800"],
    ],
    ids=repr,
)
def test_labels_come_back_as_they_were(labels, tmp_path):
    given = np.array(labels)[random_task(8, 20, 2)[1]]
    samples = random_task(8, 20, 2)[0]
    net = memorize(samples, given)
    net.save(tmp_path / "net.safetensors")
    for same in (net, ns.load(tmp_path / "net.safetensors")):
        assert same.network.predict(samples).tolist() == same.labels.tolist() == given.tolist()
        assert same.network.predict(samples).dtype == same.labels.dtype == given.dtype
    assert ns.verify(tmp_path / "net.safetensors").holds


def test_whole_numbers_in_a_list_are_kept_to_the_last_digit(tmp_path):
    """Some of them are beyond int64, some are not: numpy would take floats for all."""
    given = [9223372036854775813, 1, 9223372036854775815, 0]
    memorize([[0.0], [1.0], [2.0], [3.0]], given).save(tmp_path / "net.safetensors")
    assert ns.load(tmp_path / "net.safetensors").network.predict([[0.0], [1.0], [2.0], [3.0]]).tolist() == given
    with pytest.raises(ValueError, match="got a mixture that became float64"):
        memorize([[0.0], [1.0]], [9223372036854775813, -1])


@pytest.mark.parametrize("method", ["search", "merge"])
def test_a_network_without_a_layer_norm_can_be_kept_too(method, tmp_path):
    samples, labels = [[0.0], [1.0], [2.0]], ["a", "b", "b"]
    memorize(samples, labels, method=method).save(tmp_path / "net.safetensors")
    loaded = ns.load(tmp_path / "net.safetensors")
    assert (loaded.depth, loaded.network.predict(samples).tolist()) == (0, labels)
    assert ns.verify(tmp_path / "net.safetensors").holds


@pytest.mark.parametrize(("method", "eps"), [("search", 1e-5), ("merge", 0.0), ("merge", 1e-5)])
def test_a_saved_network_is_the_same_when_loaded(method, eps, tmp_path):
    samples, labels = random_task(9, 50, 3, channels=2)
    net = memorize(samples, labels, method=method, eps=eps)
    net.save(tmp_path / "net.safetensors")
    with pytest.raises(FileExistsError, match="exists"):
        net.save(tmp_path / "net.safetensors")
    net.save(tmp_path / "net.safetensors", force=True)
    same = ns.load(tmp_path / "net.safetensors")
    assert same == net
    assert same.to_dict() == net.to_dict()
    jsonschema.validate(net.to_dict(), type(net).json_schema())
    assert (same.network.eps, same.network.dtype, same.network.depth) == (eps, "float64", net.depth)
    assert repr(same.network) == f"LNNet(depth {net.depth}, width 3, 3 classes)"
    np.testing.assert_array_equal(same.samples, samples)
    np.testing.assert_array_equal(same.journey, net.journey)
    assert (same.network.predict(samples) == labels).all()
    ours, theirs = net.network.module.parameters(), same.network.module.parameters()
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


ALONE = """
import json, sys
import torch
from safetensors import safe_open
with safe_open(sys.argv[1], "pt") as file:
    about = json.loads(file.metadata()["result"])
    tensors = {name.removeprefix("memorized."): file.get_tensor(name) for name in file.keys()}
layers = []
for linear in [tensors["first"], *tensors["inner"], tensors["last"]]:
    if layers:
        layers.append(torch.nn.LayerNorm(3, eps=about["eps"], elementwise_affine=False))
    layers.append(torch.nn.Linear(linear.shape[1] - 1, linear.shape[0], dtype=linear.dtype))
    layers[-1].load_state_dict({"weight": linear[:, :-1], "bias": linear[:, -1]})
module = torch.nn.Sequential(*layers)
scores = module(torch.tensor(json.load(sys.stdin), dtype=torch.float64))
assert not any(name.startswith("normscope") for name in sys.modules)
print(json.dumps([about["classes"][place]["label"] for place in scores.argmax(1).tolist()]))
"""


def test_a_saved_network_needs_torch_and_safetensors_alone(tmp_path):
    samples, labels = random_task(10, 80, 3, channels=5)
    memorize(samples, [f"class {label}" for label in labels], eps=1e-5).save(tmp_path / "net.safetensors")
    command = [sys.executable, "-c", ALONE, str(tmp_path / "net.safetensors")]
    done = subprocess.run(command, input=str(samples.tolist()), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str([f"class {label}" for label in labels]).replace("'", '"')


@settings(max_examples=15, deadline=None)
@given(seed=seeds, count=st.integers(3, 30), classes=st.integers(2, 4), eps=st.sampled_from([0.0, 1e-5]))
def test_merging_takes_at_most_samples_minus_classes_layers(seed, count, classes, eps):
    samples, labels = random_task(seed, max(count, classes), classes, channels=2)
    net = memorize(samples, labels, method="merge", eps=eps)
    assert net.holds
    assert net.method == "merge"
    assert net.depth <= len(labels) - classes
    assert (net.network.predict(samples) == labels).all()


def test_merging_as_stated_confuses_classes_and_breaking_parallelisation_does_not():
    places, labels = np.array([0.0, 1.0, 2.0, 3.0]), [0, 1, 2, 0]
    centre, half = 1.5, 1.5  # the first point and the next of its class
    merged = half / np.hypot(places - centre, half)
    assert merged[0] == pytest.approx(merged[3])  # as meant
    assert merged[1] == pytest.approx(merged[2])  # classes 1 and 2 have met
    net = memorize(places[:, None], labels, method="merge")
    assert (net.certified, net.depth) == (4, 1)


def test_merging_needs_more_bits_than_floats_have_and_says_so():
    samples, labels = random_task(11, 150, 2)
    net = memorize(samples, labels, method="merge")
    assert net.holds
    assert net.weight_bits > 53
    assert net.float_right < 150
    assert 140 <= net.depth <= 148
    assert (net.network.predict(samples) == labels).all()  # in exact arithmetic


def test_a_search_without_time_falls_back_to_merging():
    samples, labels = random_task(12, 60, 2)
    net = memorize(samples, labels, seconds=0.0)
    assert (net.method, net.attempts, net.holds) == ("merge", 1, True)


def test_an_untrue_certificate_is_not_handed_out(monkeypatch):
    from normscope.capacity import memorizing

    def sabotaged(layers, eps, exact, *samples):
        if exact is None:
            layers[0][0, -1] += 0.01
        return figures(layers, eps, exact, *samples)

    monkeypatch.setattr(memorizing, "figures", sabotaged)
    net = memorize(*random_task(13, 40, 2))
    assert (net.method, net.attempts, net.holds) == ("merge", 4, True)


def test_every_step_of_the_search_is_told():
    told = []
    memorize(*random_task(14, 60, 2), progress=lambda steps, what: [told.append((what, len(steps))), *steps][1:])
    ((what, steps),) = told
    assert what == f"creasing {steps + 2} runs"


@pytest.mark.parametrize(
    ("samples", "labels", "options", "message"),
    [
        ([[0.0], [1.0]], [0, 0], {}, "two or more classes, got only 0"),
        ([[0.0], [np.nan]], [0, 1], {}, "samples must be finite, got 1 NaN"),
        ([0.0, 1.0], [0, 1], {}, "one row per sample, got shape"),
        (np.empty((0, 2)), [], {}, "one row per sample, got shape"),
        ([[0.0], [1.0]], [0, 1, 2], {}, r"one entry per sample, shape \(2,\), got shape \(3,\)"),
        ([[0.0], [1.0]], [0.0, np.nan], {}, "labels must be whole numbers, text or finite numbers"),
        ([[0.0], [1.0]], [b"a", b"b"], {}, r"labels must be .* got values of dtype \|S1: decode them"),
        ([[0.0], [1.0]], np.array([0, 1], np.longdouble), {}, "labels must be .* of up to 64 bits"),
        ([[0.0], [1.0]], [2**63 + 5, -1], {}, "numbers that one dtype holds exactly"),
        ([[0.0], [1.0]], [1, "a"], {}, "labels must all be text, or all be numbers"),
        ([[0.0], [1.0], [0.0]], ["a", "b", "c"], {}, r"equal rows \(from 0\): 0 \(a\) and 2 \(c\)"),
        ([[1.0], [1.0 + 1e-12]], [0, 1], {"dtype": "float32"}, "equal rows .* once they are rounded to float32"),
        ([[1e200], [1.0]], [0, 1], {"dtype": "float32"}, "must fit into float32"),
        ([[0.0], [1.0]], [0, 1], {"method": "fit"}, "method must be one of search, merge, got 'fit'"),
        ([[0.0], [1.0]], [0, 1], {"dtype": "float16"}, "dtype must be one of float64, float32"),
        ([[0.0], [1.0]], [0, 1], {"eps": -1.0}, "eps must be a finite number, 0 or more, got -1.0"),
        ([[0.0], [1.0]], [0, 1], {"seed": -1}, "seed must be a whole number"),
    ],
)
def test_what_can_not_be_memorised_is_refused(samples, labels, options, message):
    with pytest.raises(ValueError, match=message):
        memorize(samples, labels, **options)


def test_many_contradictions_are_counted():
    with pytest.raises(ValueError, match="and 6 more"):
        checked_samples(np.zeros((10, 1)), range(10), "float64")


@pytest.mark.parametrize("name", ["iris", "breast_cancer"])
def test_real_samples(name):
    from sklearn import datasets

    samples, labels = getattr(datasets, f"load_{name}")(return_X_y=True)
    net = memorize(samples, labels)
    assert (net.certified, net.float_right) == (len(labels), len(labels))
    assert net.depth < net.paper_depth / 10


def test_public_names_are_functions_whatever_was_imported_before():
    assert ns.capacity.memorize is memorize
    assert [name for name in ns.capacity.__all__ if not callable(getattr(ns.capacity, name))] == []
    assert ns.capacity.__all__ == dir(ns.capacity)
    with pytest.raises(AttributeError, match="no attribute 'ssr'"):
        ns.capacity.ssr  # noqa: B018


def test_one_name_of_capacity_loads_little():
    code = "import sys, normscope as ns; ns.capacity.scatter; print('torch' in sys.modules or 'numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
