"""Every backend of CUDA on a GPU, held to what those of a CPU are held to; skipped without one."""

import pytest
import torch
from hypothesis import given, settings
from support.cases import HALF, cases
from support.draws import normal
from support.tolerances import as_exact_as_torch, interval_masks, large

import regard
from regard.backends import choose
from regard.inputs import Scoring, check

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
]
FUSED = ("flash", "cudnn", "efficient")


@settings(max_examples=30)
@given(cases())
def test_whatever_is_chosen_is_as_exact_as_torch_s_own_kernel(case):
    as_exact_as_torch(case, None, "cuda")


@settings(max_examples=12)  # each may be compiled
@given(cases(dtypes=[torch.float32, *HALF]))
def test_flex(case):
    as_exact_as_torch(case, "flex", "cuda")


@settings(max_examples=30)
@given(cases(dtypes=[torch.float32], softcap=False))
def test_efficient(case):
    as_exact_as_torch(case, "efficient", "cuda")


@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
@pytest.mark.parametrize("name", interval_masks(1, 1))
@pytest.mark.parametrize("backend", ["flex", "efficient"])
def test_masks_over_the_edges_of_blocks(backend, name, dtype):
    case = large(257, 331, interval_masks(257, 331)[name], dtype=dtype)
    as_exact_as_torch(case, backend, "cuda")


@pytest.mark.parametrize("options", [{}, {"scale": -0.5}, {"scale": 0.0}, {"sink": torch.ones(3)}])
@pytest.mark.parametrize("mask", [regard.Mask(), regard.causal()])
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize(
    ("backend", "lengths"),
    [(b, (257, 257)) for b in FUSED] + [("flash", (29, 331)), ("flash", (1, 331))],
)
def test_kernels_without_a_mask_of_their_own(backend, lengths, dtype, mask, options):
    case = large(*lengths, mask, dtype=dtype, **options)
    as_exact_as_torch(case, backend, "cuda")


@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
@pytest.mark.parametrize("mask", [regard.causal(), regard.causal() & regard.window(50)])
@pytest.mark.parametrize("backend", [*FUSED, "flex", "eager"])
def test_gradients(backend, mask, dtype):
    shapes = (2, 4, 257, 40), (2, 2, 257, 40), (2, 2, 257, 24)
    tensors = [normal(*s, seed=i).to("cuda", dtype) for i, s in enumerate(shapes)]
    try:
        choose(check(*tensors, Scoring(mask=mask)), backend)
    except ValueError as objection:
        pytest.skip(str(objection))
    weight = normal(2, 4, 257, 24, seed=9).cuda()

    def gradients(attend, dtype):
        leaves = [t.to(dtype).requires_grad_() for t in tensors]
        context = attend(*leaves, mask=mask)
        return torch.autograd.grad((context * weight.to(dtype)).sum(), leaves)

    def ours(*leaves, mask):
        return regard.attention(*leaves, mask=mask, backend=backend)

    exact = gradients(lambda *a, mask: regard.explain(*a, mask=mask).context, torch.float64)
    for one, other in zip(gradients(ours, dtype), exact, strict=True):
        # Sums of hundreds of numbers that were rounded to the dtype; TF32 three times for float32.
        rounding = 2**-15 if dtype == torch.float32 else 8 * torch.finfo(dtype).eps
        limit = rounding * float(other.abs().max())
        torch.testing.assert_close(one.double(), other, rtol=0, atol=limit)


@pytest.mark.parametrize("backend", [*FUSED, "flex"])
@pytest.mark.parametrize("where", ["query", "key", "value"])
def test_a_visible_nan_comes_out(where, backend):
    tensors = {n: normal(1, 2, 130, 16, seed=i) for i, n in enumerate(("query", "key", "value"))}
    tensors = {n: t.to("cuda", torch.bfloat16) for n, t in tensors.items()}
    tensors[where][0, 1, 77, 3] = torch.nan
    context, pattern = regard.attention_with_pattern(**tensors, backend=backend)
    steps = regard.explain(**tensors)
    assert torch.equal(context.isnan(), steps.context.isnan())
    assert torch.equal(pattern.logsumexp.isnan(), steps.logsumexp.isnan())


@pytest.mark.parametrize("stray", [torch.nan, torch.inf])
def test_hidden_numbers_never_reach_results_where_that_is_asked_for(stray):
    tensors = [normal(2, 2, 130, 16, seed=s).to("cuda", torch.bfloat16) for s in range(3)]
    keep = torch.arange(130) < torch.tensor([[100], [130]])
    mask = regard.causal() & regard.padding(keep)
    clean = regard.attention(*tensors, mask=mask)
    for tensor in tensors[1:]:
        tensor[0, :, 100:] = stray
    # Another backend takes over, which rounds otherwise.
    soiled = regard.attention(*tensors, mask=mask, check_finite=True)
    torch.testing.assert_close(soiled[:, :, :100], clean[:, :, :100], rtol=2**-6, atol=2**-6)


def test_autocast_does_not_reach_inside():
    x = normal(1, 2, 130, 16).to("cuda", torch.float32)
    for backend in ("efficient", "flex", "eager"):
        plain = regard.attention(x, x, x, mask=regard.causal(), backend=backend)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            inside = regard.attention(x, x, x, mask=regard.causal(), backend=backend)
        assert inside.dtype == torch.float32
        assert torch.equal(inside, plain)
