"""The Triton kernels against torch in float64: on a GPU, or in Triton's interpreter (make test-triton)."""

import json
import os
import subprocess
import sys

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import normscope.nn
from normscope.nn import operator, pure
from strategies import FLAGS

pytest.importorskip("triton", reason="Triton is not installed: it takes 700 MB; make test-triton installs it")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not (INTERPRETED or torch.cuda.is_available()):
    pytest.skip("no GPU, and Triton's interpreter is off: make test-triton turns it on", allow_module_level=True)

from normscope.nn import triton_kernels  # noqa: E402  (it imports triton)

DEVICE = "cpu" if INTERPRETED else "cuda"
# Rows, groups, channels: groups of 1, 2 and 3 channels, one row, no rows, a large group, several tiles.
SHAPES = [(5, 9, 3), (1, 1, 1), (3, 4, 1), (4, 3, 2), (7, 2, 33), (0, 2, 4), (1, 6, 4), (2, 1, 1500), (700, 2, 3)]
SHAPES += [(3, 700, 2)]


def drawn(shape, dtype, seed=0):
    rows, groups, channels = shape
    generator = torch.Generator().manual_seed(seed)
    x, dy = torch.randn(2, rows, groups * channels, generator=generator)
    gain, bias = torch.randn(2, groups * channels, generator=generator)
    return [tensor.to(DEVICE, dtype) for tensor in (2 * x + 1, dy, gain, bias)]


def assert_near(actual, expected, relative):
    """Within a share of the largest expected number."""
    assert actual.shape == expected.shape
    if actual.numel():
        assert (actual.double() - expected).abs().max() <= relative * expected.abs().max().clamp(min=1.0)


def doubled(*tensors):
    return [None if tensor is None else tensor.double() for tensor in tensors]


@pytest.mark.parametrize("dtype", operator.DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_outputs_and_gradients_are_those_of_torch_in_float64(shape, dtype):
    x, dy, gain, bias = drawn(shape, dtype)
    step = torch.finfo(dtype).eps
    sums = 16 * torch.finfo(pure.computing_dtype(x)).eps
    for project, scale in FLAGS:
        flags = (project, scale, shape[1], 1e-3)
        y = triton_kernels.forward(x, gain, bias, *flags)
        assert y.dtype == dtype
        assert_near(y, pure.forward(*doubled(x, gain, bias), *flags), step + sums)
        dx, dgain, dbias = triton_kernels.backward(dy, x, gain, *flags)
        assert (dx.dtype, dgain.dtype, dbias.dtype) == (dtype, *[pure.computing_dtype(x)] * 2)
        wanted = pure.backward(*doubled(dy, x, gain), *flags)
        for actual, expected, most in zip((dx, dgain, dbias), wanted, (step + sums, sums, sums), strict=True):
            assert_near(actual, expected, most)


@pytest.mark.parametrize("shape", [(3, 2, 5), (2, 3, 1)], ids=str)
def test_gain_and_bias_may_be_missing_or_of_another_type(shape):
    x, dy, gain, bias = drawn(shape, torch.float32)
    flags = (True, True, shape[1], 1e-5)
    for given, shift in ((None, None), (gain, None), (None, bias), (gain.bfloat16(), bias.double())):
        assert_near(triton_kernels.forward(x, given, shift, *flags), pure.forward(x, given, shift, *flags), 1e-6)
        for actual, expected in zip(
            triton_kernels.backward(dy, x, given, *flags), pure.backward(dy, x, given, *flags), strict=True
        ):
            assert_near(actual, expected, 1e-6)


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 1e20), (torch.bfloat16, 1e30), (torch.float64, 1e160)])
def test_large_numbers_do_not_overflow(dtype, size):
    x, dy, gain, bias = drawn((3, 2, 5), dtype)
    x = (x.double() * size).to(dtype)
    for project in (True, False):
        flags = (project, True, 2, 1e-5)
        small = x.double() / size  # eps does not count there
        expected = pure.forward(small, gain.double(), bias.double(), project, True, 2, 0.0)
        assert_near(triton_kernels.forward(x, gain, bias, *flags), expected, 2 * torch.finfo(dtype).eps + 1e-14)
        dx, *_ = triton_kernels.backward(dy, x, gain, *flags)
        wanted = pure.backward(dy.double(), small, gain.double(), project, True, 2, 0.0)[0]
        assert_near(dx.double() * size, wanted, 4 * torch.finfo(dtype).eps + 1e-14)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, which computes in the interpreter
def test_what_is_not_finite_stays_in_its_group():
    x, _, gain, bias = drawn((2, 3, 4), torch.float32)
    x[0, 5], x[1, 9] = float("nan"), float("inf")
    y = triton_kernels.forward(x, gain, bias, True, True, 3, 1e-5).reshape(2, 3, 4)
    assert y[0, 1].isnan().all()
    assert y[1, 2].isnan().all()
    assert y.isfinite().sum() == 16
    constant = triton_kernels.forward(torch.zeros_like(x), gain, bias, True, True, 3, 0.0)
    assert constant.isnan().all()  # 0/0, as in torch


def test_other_strides_are_read_right():
    x, dy, gain, bias = drawn((6, 2, 3), torch.float32)
    strided, cotangent = (torch.cat([tensor, tensor], 1)[:, :6] for tensor in (x, dy))
    flags = (True, True, 2, 1e-5)
    wide = torch.stack([gain, gain], 1)[:, 0]
    assert torch.equal(
        triton_kernels.forward(strided, wide, bias, *flags), triton_kernels.forward(x, gain, bias, *flags)
    )
    both = (triton_kernels.backward(*given, *flags) for given in ((cotangent, strided, wide), (dy, x, gain)))
    for one, other in zip(*both, strict=True):
        assert torch.equal(one, other)
    expanded = torch.ones((), device=DEVICE).expand(6, 6)  # as sum() gives it
    assert_near(
        triton_kernels.backward(expanded, x, gain, *flags)[1],
        pure.backward(expanded, x, gain, *flags)[1].double(),
        1e-5,
    )


def test_the_module_trains_with_these_kernels(monkeypatch):
    if DEVICE == "cpu":  # the operator calls what it would call on a GPU
        monkeypatch.setattr(operator, "_norm", operator._norm_on_gpu)
        monkeypatch.setattr(operator, "_norm_backward", operator._norm_backward_on_gpu)
    called = []
    for name in ("forward", "backward"):
        kernel = getattr(triton_kernels, name)
        monkeypatch.setattr(triton_kernels, name, lambda *a, n=name, k=kernel: called.append(n) or k(*a))
    layer = normscope.nn.Norm(12, groups=4).to(DEVICE)
    x, dy, _, _ = drawn((5, 4, 3), torch.float32)
    layer(x.requires_grad_()).backward(dy)
    assert called == ["forward", "backward"]
    twice = x.detach().double().requires_grad_()
    gain, bias = (vector.detach().double().requires_grad_() for vector in (layer.weight, layer.bias))
    pure.forward(twice, gain, bias, True, True, 4, 1e-5).backward(dy.double())
    for actual, expected in ((x, twice), (layer.weight, gain), (layer.bias, bias)):
        assert_near(actual.grad, expected.grad, 1e-5)


@torch.no_grad()
def test_tensors_on_a_gpu_meet_these_kernels():
    """Without a GPU: on tensors that have a device but no memory, and in torch's table of kernels."""
    for name in ("normscope::norm", "normscope::norm_backward"):
        assert torch._C._dispatch_has_kernel_for_dispatch_key(name, "CUDA")
    assert operator.DEVICES == ("cpu", "cuda")
    flags = (True, True, 6, 1e-5)
    with FakeTensorMode():
        x, gain = torch.empty(2, 24, device="cuda", dtype=torch.bfloat16), torch.empty(24, device="cuda")
        y = torch.ops.normscope.norm(x, gain, None, *flags)
        assert (y.shape, y.dtype, y.device.type) == (x.shape, torch.bfloat16, "cuda")
        dx, dgain, dbias = torch.ops.normscope.norm_backward(y, x, gain, *flags)
        assert (dx.shape, dx.dtype, dgain.shape) == (x.shape, torch.bfloat16, dbias.shape)
        assert {dx.device.type, dgain.device.type, dbias.device.type} == {"cuda"}


@pytest.mark.parametrize("enabled", [True, False])
def test_under_autocast_the_operator_is_given_float32(monkeypatch, enabled):
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: enabled and device == "cuda")
    monkeypatch.setattr(torch.amp, "is_autocast_available", lambda device: True)
    with FakeTensorMode():
        monkeypatch.setattr(operator, "PLAIN", (*operator.PLAIN, type(torch.empty(0))))
        given = []
        monkeypatch.setattr(operator, "norm", lambda x, *_: given.append(x.dtype) or x)
        normscope.nn.norm(torch.empty(2, 24, device="cuda", dtype=torch.bfloat16), groups=6)
    assert given == [torch.float32 if enabled else torch.bfloat16]


def test_groups_of_too_many_channels_are_computed_by_torch():
    most = triton_kernels.MOST_CHANNELS
    assert operator._gpu_passes(most) is triton_kernels
    assert operator._gpu_passes(most + 1) is pure


COMPILED = """
import json, sys, torch, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from normscope.nn import triton_kernels as ours

types = {torch.bfloat16: "*bf16", torch.float64: "*fp64", torch.float16: "*fp16"}
sizes = []
for target in (GPUTarget("cuda", 80, 32), GPUTarget("cuda", 90, 32), GPUTarget("hip", "gfx942", 64)):
    for dtype, groups, affine in ((torch.bfloat16, 192, True), (torch.float16, 256, False), (torch.float64, 1, True)):
        _, settings = ours._tiles(torch.empty(64, 768, dtype=dtype), True, True, groups, 1e-5)
        warps = settings.pop("num_warps")
        sums = "*fp64" if dtype == torch.float64 else "*fp32"
        for kernel, tensors in (
            (ours._forward_kernel, ("x_at", "gain_at", "bias_at", "y_at")),
            (ours._backward_kernel, ("dy_at", "x_at", "gain_at", "dx_at", "dgain_at", "dbias_at")),
        ):
            signature = {name: sums if name in ("dgain_at", "dbias_at") else types[dtype] for name in tensors}
            constants = dict(settings)
            for name in ("gain_at", "bias_at"):
                if not affine and name in signature:
                    constants[name] = None
            signature |= {"rows": "i32"} | dict.fromkeys(constants, "constexpr")
            signature = {name: signature[name] for name in kernel.arg_names}
            made = triton.compile(
                ASTSource(kernel, signature=signature, constexprs=constants),
                target=target,
                options={"num_warps": warps},
            )
            sizes.append(len(made.asm["cubin" if target.backend == "cuda" else "hsaco"]))
print(json.dumps(sizes))
"""


def test_the_kernels_compile_to_machine_code_of_gpus(tmp_path):
    """The interpreter accepts more than the compiler does. No GPU is needed to compile: A100, H100, MI300."""
    surroundings = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    surroundings |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", COMPILED], env=surroundings, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    sizes = json.loads(done.stdout)
    assert len(sizes) == 18
    assert min(sizes) > 1000
