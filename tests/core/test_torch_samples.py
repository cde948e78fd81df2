"""torch's own samples through regard's drop-in: values, gradients, vmap, meta, torch.compile."""

import pytest
from support.processes import run_script

# In a process of its own: torch's samples come with its whole test suite, and the compiler can't
# see through the type checks of the test run.
SAMPLES = """
import sys, types, unittest, warnings

# torch's test suite wants this package, of which making samples uses nothing.
sys.modules["expecttest"] = types.SimpleNamespace(TestCase=unittest.TestCase)
warnings.simplefilter("ignore")
import torch
import torch.nn.functional as F
from torch.func import grad, vmap
from torch.testing import assert_close
from torch.testing._internal.common_methods_invocations import op_db

import regard

# Sums of some ten products of numbers up to 9. Scores go up to some 200, which float32 rounds by
# 1e-5: by that, in relation, weights differ, and so do gradients, which go up to 50.
TOLERANCES = {torch.float64: (1e-10, 0), torch.float32: (2e-4, 1e-5), torch.bfloat16: (0.3, 0)}
COMPILED = (torch.float64, torch.float32)  # bfloat16 takes the way of float32
(info,) = (op for op in op_db if op.name == "nn.functional.scaled_dot_product_attention")

def close(results, wanted):
    atol, rtol = TOLERANCES[dtype]
    for result, exact in zip(results, wanted, strict=True):
        assert_close(result, exact, rtol=rtol, atol=atol)

def on_meta(value):
    return value.to("meta") if isinstance(value, torch.Tensor) else value

def check(sample, place):
    query, key, value, *others = sample.input, *sample.args
    tensors = query, key, value

    def both(function):
        def call(*tensors):
            return function(*tensors, *others, **sample.kwargs)

        def gradients(*tensors):
            tensors = [t.detach().requires_grad_() for t in tensors]
            return torch.autograd.grad(call(*tensors).sum(), tensors, materialize_grads=True)

        return call, gradients

    call, gradients = both(regard.scaled_dot_product_attention)
    torchs, torchs_gradients = both(F.scaled_dot_product_attention)
    context = call(*tensors)
    close((context, *gradients(*tensors)), (torchs(*tensors), *torchs_gradients(*tensors)))

    halves = [t * 0.5 for t in tensors]
    many = [torch.stack(pair) for pair in zip(tensors, halves)]
    close(vmap(call)(*many), (context, call(*halves)))
    of_each = vmap(grad(lambda *t: call(*t).sum(), argnums=(0, 1, 2)))(*many)
    wanted = zip(torchs_gradients(*tensors), torchs_gradients(*halves), strict=True)
    close(of_each, map(torch.stack, wanted))

    options = {name: on_meta(value) for name, value in sample.kwargs.items()}
    shape = regard.scaled_dot_product_attention(*map(on_meta, (*tensors, *others)), **options).shape
    assert shape == context.shape

    if dtype not in COMPILED or place % 3:  # compilations take longest
        return
    torch.compiler.reset()
    compiled = torch.compile(call, fullgraph=True, backend="eager")
    close([compiled(*tensors)], [context])

for dtype in TOLERANCES:
    print(dtype, file=sys.stderr)  # where it ends, should it fail
    samples = info.sample_inputs("cpu", dtype, requires_grad=False)
    samples = [s for s in samples if not s.kwargs.get("dropout_p")]  # torch draws other numbers
    assert len(samples) > 5, "there are samples"
    for place, sample in enumerate(samples):
        check(sample, place)
"""


@pytest.mark.thorough
def test_sdpa_passes_torch_s_samples():
    run_script(SAMPLES)
