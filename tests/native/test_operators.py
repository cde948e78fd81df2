"""The kernels as torch operators under autograd, compilers and modes."""

import pytest
import torch
from support.draws import normal
from support.processes import run_script
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import regard
from regard.backends.native import _operators  # noqa: F401 - registers the operators
from regard.backends.native._arguments import Arguments
from regard.backends.native._backward import DIFFERENTIABLE
from regard.inputs import Scoring, check
from regard.masks.hiding import add_to_scores

B, H, G, L, S, D, DV = 2, 6, 3, 5, 7, 11, 13


def inputs(*, grad=False):
    shapes = (B, H, L, D), (B, G, S, D), (B, G, S, DV)
    return [normal(*s, seed=i).requires_grad_(grad) for i, s in enumerate(shapes)]


OPTIONS = {
    "plain": dict,
    "causal": lambda: {"mask": regard.causal()},
    "padded": lambda: {
        "mask": regard.causal() & regard.padding(torch.arange(S)[None] >= torch.tensor([[0], [2]]))
    },
    "spans": lambda: {
        "mask": regard.masks.hide([1, 2, 5], slice(4, None)) & add_to_scores(0.7, [3, 5])
    },
    "dense": lambda: {"mask": regard.dense(normal(L, S, seed=5) > -1), "softcap": 3.0},
    "numbers": lambda: {
        "bias": normal(H, 1, S, seed=6),
        "alibi": torch.rand(H) + 0.1,
        "sink": normal(H, seed=7),
        "scale": -0.3,
    },
    "dropped": lambda: {"dropout": 0.3, "generator": torch.Generator().manual_seed(3)},
}


def arguments(name, *, grad):
    options = OPTIONS[name]()
    drawing = {key: options.pop(key) for key in ("dropout", "generator") if key in options}
    flat = Arguments.of(check(*inputs(), Scoring(**options), **drawing))
    return tuple(
        tensor.detach().requires_grad_(grad)
        if field in DIFFERENTIABLE and tensor is not None
        else tensor
        for field, tensor in zip(Arguments._fields, flat, strict=True)
    )


# opcheck takes a second for each.
SOME = pytest.mark.parametrize(
    "name",
    [pytest.param(o, marks=[pytest.mark.thorough] * (i % 3 > 0)) for i, o in enumerate(OPTIONS)],
)


@pytest.mark.each_once
@pytest.mark.parametrize("grad", [False, True])
@SOME
def test_the_forward_operator_keeps_torch_s_rules(name, grad):
    torch.library.opcheck(torch.ops.regard.attention.default, arguments(name, grad=grad))


@SOME
def test_the_backward_operator_keeps_torch_s_rules(name):
    flat = arguments(name, grad=False)
    context, logsumexp = torch.ops.regard.attention(*flat)
    wanted = [
        field in DIFFERENTIABLE and tensor is not None
        for field, tensor in zip(Arguments._fields, flat, strict=True)
    ]
    torch.library.opcheck(
        torch.ops.regard.attention_backward.default,
        (torch.ones_like(context), context, logsumexp, wanted, *flat),
    )


# In a process of its own: the compiler can't see through the type checks of the test run.
COMPILED = """
import torch, regard

ids = torch.tensor([0, 0, 0, 1, 1, 1, 1])
keep = torch.arange(7)[None] >= torch.tensor([[0], [2]])
OPTIONS = [
    {},
    {"mask": regard.causal()},
    {"mask": regard.causal() & regard.window(3), "scale": -0.3},
    {"mask": regard.causal() & regard.padding(keep), "sink": torch.ones(6)},
    {"mask": regard.documents(ids), "alibi": torch.ones(6)},
    {"mask": regard.causal() & regard.masks.hide([1, 2, 5], slice(4, None), heads=[0, 3])},
    {"mask": regard.dense(torch.rand(5, 7) < 0.7), "softcap": 3.0, "bias": torch.rand(6, 1, 7)},
]

def inputs():
    torch.manual_seed(0)
    shapes = (2, 6, 5, 11), (2, 3, 7, 11), (2, 3, 7, 13)
    return [torch.randn(shape, requires_grad=True) for shape in shapes]

for number, options in enumerate(OPTIONS):
    dynamic = number > 2  # tests/core/test_export.py has the first ones for symbolic sizes
    def loss(query, key, value):
        return regard.attention(2 * query, key, value, **options).square().sum()
    torch.compiler.reset()
    compiled = torch.compile(loss, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    results = []
    for call in (compiled, loss):
        tensors = inputs()
        result = call(*tensors)
        results.append((result, *torch.autograd.grad(result, tensors)))
    assert all(map(torch.equal, *results)), options
"""


@pytest.mark.thorough
def test_a_compiled_model_is_one_graph():
    run_script(COMPILED)


def test_a_second_derivative_is_refused_with_the_cure():
    tensors = inputs(grad=True)
    context = regard.attention(*tensors, mask=regard.causal())
    (first,) = torch.autograd.grad(context.square().sum(), tensors[:1], create_graph=True)
    with pytest.raises(regard.Error, match=r"first derivatives only; .* backend='eager'"):
        first.sum().backward()


class Seen(TorchDispatchMode):
    """Notes the operators that run."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function.name())
        return function(*args, **(kwargs or {}))


def test_a_mode_sees_the_operator():
    with Seen() as seen:
        regard.attention(*inputs(), mask=regard.causal())
    assert "regard::attention" in seen.names


def test_fake_tensors_get_fake_results():
    with FakeTensorMode() as mode:
        query, key, value = (mode.from_tensor(t) for t in inputs())
        context = regard.attention(query, key, value, mask=regard.causal())
    assert context.shape == (B, H, L, DV)


# The short way that plain calls take.


@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("mask", [None, regard.causal(), regard.window(3), regard.causal(offset=0)])
def test_a_plain_call_equals_the_operator_bitwise(mask, scale):
    query, key, value = inputs()
    expected, _ = torch.ops.regard.attention(
        *Arguments.of(check(query, key, value, Scoring(mask=mask, scale=scale)))
    )
    for _ in range(2):  # the first call makes the plan, the second uses it
        context = regard.attention(query, key, value, mask=mask, scale=scale)
        assert torch.equal(context, expected)


def test_a_plan_is_for_one_layout_only():
    x = normal(2, 3, 5, 8)
    other = x.transpose(1, 2).contiguous().transpose(1, 2)
    wide = torch.full((2, 3, 5, 16), torch.nan)
    wide[..., ::2] = x
    expected = regard.attention(x, x, x, backend="eager")
    for layout in (x, other, wide[..., ::2], x):
        torch.testing.assert_close(regard.attention(layout, layout, layout), expected)


def test_tensors_with_the_negative_bit_are_resolved():
    negative = torch.complex(normal(1, 2, 5, 8), normal(1, 2, 5, 8, seed=1)).conj().imag
    assert negative.is_neg()
    context = regard.attention(negative, negative, negative)
    plain = negative.clone()
    assert torch.equal(context, regard.attention(plain, plain, plain))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # by torch's own rules
def test_a_plain_call_under_a_transform_uses_the_operator():
    tensors = inputs()
    with torch.autograd.forward_ad.dual_level():
        tensors[0] = torch.autograd.forward_ad.make_dual(tensors[0], torch.ones_like(tensors[0]))
        context = regard.attention(*tensors)
        _, tangent = torch.autograd.forward_ad.unpack_dual(context)
    doubles = [t.double() for t in inputs()]
    _, exact = torch.func.jvp(
        lambda query: regard.attention(query, *doubles[1:]),
        (doubles[0],),
        (torch.ones_like(doubles[0]),),
    )
    torch.testing.assert_close(tangent.double(), exact, rtol=0, atol=1e-5)  # no tangent is lost


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_calls_without_the_operators_equal_them_bitwise(dtype):
    tensors = [t.detach().to(dtype).requires_grad_() for t in inputs()]

    def differentiate():
        context = regard.attention(*tensors, mask=regard.causal())
        return context.detach(), *torch.autograd.grad(context, tensors, torch.ones_like(context))

    alone = differentiate()
    with torch.profiler.profile() as profile:  # which sees operators
        dispatched = differentiate()
    names = {event.key for event in profile.key_averages()}
    assert {"regard::attention", "regard::attention_backward"} <= names
    assert all(torch.equal(*pair) for pair in zip(alone, dispatched, strict=True))


@pytest.mark.parametrize(
    "of_context",
    [torch._neg_view(-normal(B, H, L, DV, seed=9)), torch._efficientzerotensor((B, H, L, DV))],
    ids=["a negative view", "zeros without memory"],
)
def test_gradients_that_torch_resolves_first(of_context):
    tensors = inputs(grad=True)
    context = regard.attention(*tensors, mask=regard.causal())
    lazily = torch.autograd.grad(context, tensors, of_context, retain_graph=True)
    written = torch.autograd.grad(context, tensors, of_context + torch.zeros(B, H, L, DV))
    assert all(torch.equal(*pair) for pair in zip(lazily, written, strict=True))


def test_a_batch_of_gradients_is_refused_by_torch():
    query, key, value = inputs(grad=True)
    context = regard.attention(query, key, value)
    with pytest.raises(RuntimeError, match="Batching rule not implemented for regard::attention"):
        torch.autograd.grad(context, query, normal(3, *context.shape), is_grads_batched=True)


@pytest.mark.parametrize("axes", [3, 4])
def test_saved_tensors_may_come_back_in_another_layout(axes):
    tensors, of_context = inputs(grad=True), normal(B, H, L, DV, seed=9)
    context = regard.attention(*tensors, mask=regard.causal())
    wanted = torch.autograd.grad(context, tensors, of_context)

    def transposed(tensor):
        return tensor.mT.contiguous().mT if tensor.ndim == axes else tensor

    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, transposed):
        context = regard.attention(*tensors, mask=regard.causal())
    given = torch.autograd.grad(context, tensors, of_context)
    assert all(torch.equal(*pair) for pair in zip(given, wanted, strict=True))


TANGENT = """
import torch
from torch.autograd import forward_ad
import regard

tensors = [torch.randn(2, 3, 5, 7).requires_grad_() for _ in range(3)]
context = regard.attention(*tensors, mask=regard.causal())
with forward_ad.dual_level():
    gradient = forward_ad.make_dual(torch.ones_like(context), torch.ones_like(context))
    try:
        torch.autograd.grad(context, tensors, gradient)
    except regard.Error as error:
        assert "gives first derivatives only" in str(error)
        assert "pass backend='eager'" in str(error)
    else:
        raise AssertionError("the tangent is lost")
"""


def test_a_tangent_of_a_gradient_is_refused_with_the_cure():
    run_script(TANGENT)  # in a process of its own, since levels of duals are torch's global state
