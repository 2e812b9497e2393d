"""The compiled loss and gradient of Majority, against autograd through the same model in float64."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from normscope_lab.engine.cell_state import CellState
from normscope_lab.training import majority_task
from normscope_lab.training.majority_task import (
    VARIANTS,
    WITHOUT_LONG,
    Batches,
    Majority,
    fast_loss_of,
    loss_of,
    sequences,
    trained,
)
from normscope_lab.training.training_loop import descend, linear_decay

SIZES = [(2, 3), (5, 3), (6, 4), (20, 8), (9, 13), (23, 18)]  # classes, width


def drawn(classes, width, samples, variant=VARIANTS[0], seed=0):
    """A model in float64 whose parameters are all random, counts of which many are 0, and targets."""
    torch.manual_seed(seed)
    model = Majority(classes, width, variant).double()
    with torch.no_grad():
        for vector in (*model.norm2.parameters(), model.out.bias):
            vector.add_(torch.randn(width), alpha=0.5)
    counts = torch.randint(-8, 12, (samples, classes)).clamp(min=0).double()
    counts[torch.arange(samples), torch.randint(classes, (samples,))] += 1.0  # none is empty
    return model, counts, torch.randint(classes, (samples,))


def gradients(loss, model):
    return dict(zip(dict(model.named_parameters()), torch.autograd.grad(loss, [*model.parameters()]), strict=True))


def errors(model, counts, target, loss=fast_loss_of, dtype=torch.float32):
    """How far the loss and each gradient are from autograd in float64, relative to the largest entry."""
    expected = loss_of(model, counts, target)
    exact = {"loss": expected.detach(), **gradients(expected, model)}
    computed = loss(model.to(dtype), counts.to(dtype), target)
    assert computed.dtype == dtype
    found = {"loss": computed.detach(), **gradients(computed, model)}
    model.double()  # the same numbers: all are in float32
    # A gradient is the difference of probabilities: near 0, where all are right or no unit is active, it has no digits.
    sizes = {name: max(exact[name].abs().max().item(), 1e-3) for name in exact}
    return {name: (found[name] - exact[name]).abs().max().item() / sizes[name] for name in exact}


def in_float32(model):
    """Its parameters rounded, so that they are the same in both dtypes."""
    return model.float().double()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("classes", "width"), SIZES)
def test_loss_and_gradient_are_those_of_autograd(variant, classes, width):
    model, counts, target = drawn(classes, width, 101, variant)
    found = errors(model, counts, target, dtype=torch.float64)
    assert max(found.values()) < 1e-12, found
    found = errors(in_float32(model), counts, target)
    assert max(found.values()) < 1e-5, found


@pytest.mark.parametrize("samples", [1, 2, 63, 64, 65, 1000, 1537])
def test_batches_of_any_size_are_divided_into_blocks(samples):
    model, counts, target = drawn(3, 4, samples)
    found = errors(model, counts, target, dtype=torch.float64)
    assert max(found.values()) < 1e-12, found
    found = errors(in_float32(model), counts, target)
    assert max(found.values()) < 1e-5, found


@given(
    classes=st.integers(2, 10),
    width=st.integers(3, 10),
    samples=st.integers(1, 40),
    variant=st.sampled_from(VARIANTS),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_model_and_batch_agree_with_autograd(classes, width, samples, variant, seed):
    found = errors(*drawn(classes, width, samples, variant, seed), dtype=torch.float64)
    assert max(found.values()) < 1e-9, found


@pytest.mark.parametrize("variant", VARIANTS)
def test_in_float32_it_is_as_exact_as_torch(variant):
    counts, target = sequences({"length": 50, "classes": 20, "samples": 3000, "lead": 6}, seed=0)
    model = in_float32(drawn(20, 8, 1, variant)[0])
    ours = errors(model, counts.double(), target)
    theirs = errors(model, counts.double(), target, loss_of)
    assert all(ours[name] < 2 * theirs[name] + 1e-7 for name in ours), (ours, theirs)


def test_sequences_of_a_single_class_and_sequences_that_are_repeated():
    model, _, _ = drawn(5, 4, 1)
    alone = 7 * torch.eye(5, dtype=torch.float64)[[1, 3, 3]]
    found = errors(model, alone, torch.tensor([1, 3, 0]), dtype=torch.float64)
    assert max(found.values()) < 1e-12, found
    model, counts, target = drawn(5, 4, 6)
    batch = torch.tensor([4, 0, 4, 4])
    found = errors(model, counts[batch], target[batch], dtype=torch.float64)
    assert max(found.values()) < 1e-12, found
    whole = fast_loss_of(model, counts, target)
    twice = fast_loss_of(model, counts.repeat(2, 1), target.repeat(2))
    torch.testing.assert_close(twice, whole, rtol=1e-14, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_probabilities_that_underflow_cost_no_digits(dtype):
    model, counts, target = drawn(6, 4, 50)
    with torch.no_grad():
        model.embedding *= 64.0
    scores, sequence, _ = model(counts)
    behind = scores.amax(1) - scores.gather(1, target[sequence][:, None])[:, 0]
    assert behind.max() > 1000  # exp(−1000) is 0
    found = errors(in_float32(model), counts, target, dtype=dtype)
    assert max(found.values()) < (1e-12 if dtype == torch.float64 else 1e-4), found


def test_a_loss_that_is_scaled_scales_its_gradient():
    model, counts, target = drawn(6, 4, 20)
    once, thrice = (gradients(factor * fast_loss_of(model, counts, target), model) for factor in (1, 3))
    assert all(torch.allclose(thrice[name], 3 * once[name], rtol=1e-14, atol=0) for name in once)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", [name for name, _ in drawn(2, 3, 1)[0].named_parameters()])
@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_a_parameter_that_is_not_finite_shows_in_the_loss(name, wrong, dtype):
    model, counts, target = drawn(5, 4, 30)
    parameter = dict(model.named_parameters())[name]
    parameter.data.view(-1)[-1] = wrong
    model, counts = model.to(dtype), counts.to(dtype)
    assert not loss_of(model, counts, target).isfinite()
    loss = fast_loss_of(model, counts, target)
    assert not loss.isfinite()
    assert any(gradient.isnan().any() for gradient in gradients(loss, model).values())


def test_inputs_of_the_norm_without_variance_give_nan_as_in_torch():
    model, counts, target = drawn(5, 4, 30, WITHOUT_LONG)
    with torch.no_grad():
        model.embedding[2], model.out.weight[:], model.out.bias[:] = 1.0, 0.0, 1.0
    assert loss_of(model, counts, target).isnan()
    assert fast_loss_of(model, counts, target).isnan()


def test_variances_beyond_float32_do_not_give_a_finite_loss():
    model, counts, target = drawn(5, 4, 30)
    with torch.no_grad():
        model.out.bias[0] = 1e25
    assert fast_loss_of(model.float(), counts.float(), target).isnan()


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_short_training_has_the_losses_of_torch(variant):
    counts, target = sequences({"length": 30, "classes": 6, "samples": 400, "lead": 6}, seed=0)
    losses = []
    for loss_function in (loss_of, fast_loss_of):
        torch.manual_seed(1)
        model, batches = Majority(6, 4, variant), Batches(400, 33)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, fused=loss_function is fast_loss_of)
        schedule = linear_decay(optimizer, 100)
        taken = [batches.next() for _ in range(40)]
        losses.append(
            [descend(loss_function(model, counts[batch], target[batch]), optimizer, schedule) for batch in taken]
        )
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert losses[1][-1] < 0.9 * losses[1][0]


def test_training_on_the_cpu_uses_it(tmp_path, monkeypatch):
    def refused(*_):
        raise AssertionError

    monkeypatch.setattr(majority_task, "best_device", lambda: torch.device("cpu"))
    monkeypatch.setattr(majority_task, "loss_of", refused)
    settings = {"samples": 60, "length": 20, "classes": 5, "lead": 6, "width": 4, "batch": 8, "steps": 4}
    settings |= {"learning_rate": 1e-2, "decay_steps": 100, "epoch": 2, "every": 1, "variant": VARIANTS[0]}
    rows, _ = trained(settings, 0, CellState(tmp_path, "cell"))
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert all(0.1 < row["loss"] < 20 for row in rows)
