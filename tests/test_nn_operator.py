"""The operator and what it is compiled from: shuffles on plain lists, rounding bit by bit, threads, what torch asks."""

import os
import signal
import sys

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

import normscope.nn
from normscope.nn import kernels, operator, pure, threads
from normscope.nn.blocks import LANES, Block, spread

OPERATORS = torch.ops.normscope


class ListVector:
    """Eight numbers that are there already, with what blocks ask of vectors."""

    def __init__(self, numbers):
        self.numbers = list(numbers)

    def shuffled(self, other, lanes):
        both = self.numbers + other.numbers
        return ListVector([both[lane] for lane in lanes])

    def like(self, number):
        return ListVector([number] * len(self.numbers))

    def __add__(self, other):
        return ListVector([a + b for a, b in zip(self.numbers, other.numbers, strict=True)])


@pytest.mark.parametrize("channels", range(1, 33))
def test_totals_and_spread_of_groups_of_any_size(channels):
    numbers = [3**i % 1009 for i in range(LANES * channels)]
    block = Block(ListVector(numbers[LANES * j : LANES * (j + 1)]) for j in range(channels))
    expected = [sum(numbers[group * channels : (group + 1) * channels]) for group in range(LANES)]
    assert block.totals().numbers == expected
    flat = [number for vector in spread(ListVector(expected), channels) for number in vector.numbers]
    assert flat == [expected[i // channels] for i in range(LANES * channels)]


SIZES = [(c, g) for c in (1, 2, 3, 4, 6, 7, 8, 17) for g in (1, 8, 11)] + [(33, 3), (64, 2), (100, 1), (257, 2)]


@pytest.mark.parametrize(("channels", "groups"), SIZES)
def test_compiled_passes_agree_with_the_operations_of_torch(channels, groups):
    generator = torch.Generator().manual_seed(channels)
    x, dy = torch.randn(2, 5, groups * channels, generator=generator)
    gain, bias = torch.randn(2, groups * channels, generator=generator)
    flags = (True, True, groups, 1e-2)
    expected = pure.forward(x.double(), gain.double(), bias.double(), *flags)
    assert (OPERATORS.norm(x, gain, bias, *flags) - expected).abs().max() < 2e-5
    wanted = pure.backward(dy.double(), x.double(), gain.double(), *flags)
    for actual, exact in zip(OPERATORS.norm_backward(dy, x, gain, *flags), wanted, strict=True):
        assert (actual - exact).abs().max() < 1e-4 * max(1.0, exact.abs().max())


def identity(x, bias=None):
    """The norm that does nothing: what goes through it is only stored and loaded. Eight groups of 4, and four more."""
    return OPERATORS.norm(x.reshape(-1, 48), None, bias, False, False, 12, 0.0).reshape(-1)


HALVES = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", HALVES)
def test_every_half_precision_number_is_loaded_and_stored_as_it_is(dtype):
    every = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    every = torch.cat([every, every[:32]])  # whole rows
    through = identity(every)
    numbers = ~every.isnan()
    assert torch.equal(through[numbers], every[numbers])
    assert through[~numbers].isnan().all()


@pytest.mark.parametrize("dtype", HALVES)
def test_rounding_to_half_precision_is_that_of_torch(dtype):
    generator = torch.Generator().manual_seed(0)
    anything = torch.randint(-(2**31), 2**31, (48 * 400,), generator=generator).to(torch.int32).view(torch.float32)
    usual = torch.randn(48 * 100, generator=generator) * 10.0 ** torch.randint(-9, 6, (4800,), generator=generator)
    halves = torch.arange(48 * 600, dtype=torch.int32).to(torch.int16).view(dtype).float()
    ties = (halves + halves.roll(-1)) / 2  # between neighbours
    special = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), 65504.0, 65519.9, 65520.0, 6e-8, 2.98e-8, 3.4e38])
    for numbers in (anything, usual, ties, special.repeat(48)):
        stored = torch.cat([identity(torch.zeros(48, dtype=dtype), row) for row in numbers.reshape(-1, 48)])
        expected = numbers.to(dtype)
        some = ~expected.isnan()
        assert torch.equal(stored[some], expected[some])
        assert stored[~some].isnan().all()


def test_not_a_number_stays_one_whatever_its_bits():
    bits = torch.tensor([0x7FFFFFFF, -1, 0x7F800001, 0x7FC00000, -0x400000], dtype=torch.int32).view(torch.float32)
    for dtype in HALVES:
        assert identity(torch.zeros(48, dtype=dtype), bits.repeat(10)[:48]).isnan().all()


@pytest.mark.parametrize("count", [2, 3])
def test_threads_share_the_rows_and_change_nothing(count):
    generator = torch.Generator().manual_seed(0)
    x, dy = torch.randn(2, 301, 512, generator=generator)
    gain, bias = torch.randn(2, 512, generator=generator)
    flags = (True, True, 64, 1e-5)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone, alone_back = OPERATORS.norm(x, gain, bias, *flags), OPERATORS.norm_backward(dy, x, gain, *flags)
        torch.set_num_threads(count)
        assert len(threads.shares(301, 512, count)) == count
        together, together_back = OPERATORS.norm(x, gain, bias, *flags), OPERATORS.norm_backward(dy, x, gain, *flags)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(alone, together)
    assert torch.equal(alone_back[0], together_back[0])
    for one, many in zip(alone_back[1:], together_back[1:], strict=True):
        assert torch.allclose(one, many, rtol=1e-4, atol=1e-4)


def test_an_error_on_another_thread_is_not_lost():
    def work(part, start, stop):
        if part:
            raise ArithmeticError(f"rows {start} to {stop}")

    with pytest.raises(ArithmeticError, match="rows 5 to 9"):
        threads.on_threads(work, [(0, 5), (5, 9)])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_threads_work_after_a_fork():
    done = []
    parts = [(0, 1), (1, 2)]
    threads.on_threads(lambda part, *_: done.append(part), parts)
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # a child that waits for threads that do not exist would wait for ever
        threads.on_threads(lambda part, *_: done.append(part), parts)
        os._exit(0 if sorted(done) == [0, 0, 1, 1] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize(("dtype", "affine"), [(torch.float32, True), (torch.bfloat16, False)])
def test_the_operators_keep_what_they_promise_to_torch(dtype, affine):
    generator = torch.Generator().manual_seed(0)
    x, dy = (torch.randn(3, 24, generator=generator).to(dtype).requires_grad_() for _ in range(2))
    gain, bias = (torch.randn(24, generator=generator).to(dtype).requires_grad_() if affine else None for _ in range(2))
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {}
    for call, arguments in ((OPERATORS.norm, (x, gain, bias)), (OPERATORS.norm_backward, (dy, x, gain))):
        result = torch.library.opcheck(call.default, (*arguments, True, True, 6, 1e-5), test_utils=checks, **tolerance)
        assert set(result.values()) == {"SUCCESS"}


def test_the_operators_can_be_called_as_they_are():
    x = torch.randn(3, 24, generator=torch.Generator().manual_seed(0)).requires_grad_()
    y = OPERATORS.norm(x, None, None, True, True, 6, 1e-5)
    assert torch.equal(y, normscope.nn.norm(x, groups=6))
    (dx,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(dx.square().sum(), x)
    assert second.isfinite().all()
    with pytest.raises(ValueError, match="groups must divide"):
        OPERATORS.norm(x, None, None, True, True, 5, 1e-5)
    with pytest.raises(ValueError, match="dy must have the shape of x"):
        OPERATORS.norm_backward(torch.ones(3, 23), x.detach(), None, True, True, 6, 1e-5)


def test_the_profiler_sees_the_operator():
    layer = normscope.nn.Norm(24, groups=6)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        layer(torch.ones(2, 24, requires_grad=True)).sum().backward()
    names = {event.key for event in seen.key_averages()}
    assert {"normscope::norm", "normscope::norm_backward"} <= names


def test_modes_of_torch_see_the_operator():
    class Names(TorchDispatchMode):
        seen = ()

        def __torch_dispatch__(self, call, types, args=(), kwargs=None):
            self.seen += (call.name(),)
            return call(*args, **(kwargs or {}))

    layer = normscope.nn.Norm(24, groups=6)
    with Names() as names:
        layer(torch.ones(2, 24, requires_grad=True)).sum().backward()
    assert {"normscope::norm", "normscope::norm_backward"} <= set(names.seen)
    with FakeTensorMode() as mode:
        x = mode.from_tensor(torch.ones(2, 24))
        assert OPERATORS.norm(x, None, None, True, True, 6, 1e-5).shape == (2, 24)


def test_nothing_is_kept_for_the_backward_pass_but_the_input():
    x = torch.randn(4, 24, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        normscope.nn.Norm(24, groups=6)(x)
    assert sorted(tensor.numel() for tensor in kept) == [24, 96]


def test_what_is_kept_on_disk_is_named_after_the_files_that_write_it(monkeypatch):
    for one_pass in kernels.passes(0, 4, True, True):
        assert one_pass.py_func.__qualname__.endswith(kernels._edition())
    monkeypatch.setattr(kernels, "getsource", lambda file: f"{file.__name__}, changed")
    assert kernels._edition.__wrapped__() != kernels._edition()


def test_missing_passes_are_told_once_and_with_the_reason(monkeypatch):
    monkeypatch.setitem(sys.modules, "normscope.nn.kernels", None)
    monkeypatch.setattr(operator, "_told", [])
    operator._passes.cache_clear()
    try:
        with pytest.warns(RuntimeWarning, match=r"not available here \((Import|ModuleNotFound)Error: "):
            normscope.nn.norm(torch.ones(2, 12))
        normscope.nn.norm(torch.ones(2, 12), groups=3)  # another warning would be an error
        assert len(operator._told) == 2
    finally:
        operator._passes.cache_clear()


@pytest.mark.parametrize("dtype", operator.DTYPES)
def test_what_others_left_in_memory_changes_nothing(dtype):
    """Fewer groups than are worked on at a time: the rest of the vectors must not count as overflowed."""
    x = torch.randn(64, 12, generator=torch.Generator().manual_seed(0)).to(dtype)
    expected = normscope.nn.norm(x, groups=3)
    for _ in range(20):
        garbage = [torch.full((96,), torch.finfo(dtype).max, dtype=dtype) for _ in range(20)]
        del garbage
        assert torch.equal(normscope.nn.norm(x, groups=3), expected)
