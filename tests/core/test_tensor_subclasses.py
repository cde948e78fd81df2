"""Tensor subclasses whose memory does not hold their values: converted, or refused."""

import pytest
import torch
import torch.nn.functional as F
from support.draws import normal
from support.processes import run_script
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

import regard

H, L, S, D = 2, 5, 7, 11


def inputs(queries=L, keys=S):
    return normal(3, H, queries, D), normal(3, H, keys, D, seed=1), normal(3, H, keys, D, seed=2)


BIASES = {
    "upper left": lambda: causal_upper_left(L, S),
    "lower right": lambda: causal_lower_right(L, S),
}


def unwritten(bias):
    """The memory of a causal bias is never written; have it hold what would be noticed."""
    with torch._C.DisableTorchFunctionSubclass():
        bias.fill_(torch.nan)
    return bias


@pytest.mark.parametrize("name", BIASES)
def test_a_causal_bias_is_torch_s(name):
    tensors = inputs()
    bias = unwritten(BIASES[name]())
    context = regard.scaled_dot_product_attention(*tensors, attn_mask=bias)
    # Both sum seven products of numbers near 1 in float32.
    wanted = F.scaled_dot_product_attention(*tensors, attn_mask=bias)
    torch.testing.assert_close(context, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", BIASES)
def test_a_causal_bias_is_recorded(name):
    query, key, value = inputs()
    bias = unwritten(BIASES[name]())
    with regard.record() as recording:
        F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
    mask = regard.causal(offset=0) if name == "upper left" else regard.causal()
    assert len(recording) == 1
    weights = regard.explain(query, key, value, mask=mask).weights
    seen = weights[..., :L] if name == "upper left" else weights  # a recording cuts off the rest
    torch.testing.assert_close(recording[0].dense(), seen)


def test_a_causal_bias_of_another_size():
    query, key, value = inputs()
    # torch's own call looks at nothing but the corner here, as with is_causal.
    context = regard.scaled_dot_product_attention(
        query, key, value, attn_mask=causal_upper_left(64, 64)
    )
    wanted = regard.attention(query, key, value, mask=regard.causal(offset=0))
    assert torch.equal(context, wanted)
    with pytest.raises(
        ValueError, match=r"causal_lower_right\(7, 7\), but .* 5 queries and 7 keys"
    ):
        regard.scaled_dot_product_attention(query, key, value, attn_mask=causal_lower_right(7, 7))


def test_a_causal_bias_beside_is_causal_is_refused_as_torch_does():
    for call in (F.scaled_dot_product_attention, regard.scaled_dot_product_attention):
        with pytest.raises(ValueError, match="CausalBias"):
            call(*inputs(), attn_mask=causal_upper_left(L, S), is_causal=True)


class Lazy(torch.Tensor):
    """Stands for another tensor, which SDPA alone learns, as of a CausalBias."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is F.scaled_dot_product_attention:
            return inputs()[0]
        return super().__torch_function__(function, types, args, kwargs)


def lazy(*shape):
    return torch.full(shape, torch.nan).as_subclass(Lazy)


USES = {
    "mask": regard.dense,
    "attn_mask": lambda tensor: regard.scaled_dot_product_attention(*inputs(), attn_mask=tensor),
    "bias": lambda tensor: regard.attention(*inputs(), bias=tensor),
    "query": lambda tensor: regard.Pattern(tensor, inputs()[1]),
    "key": lambda tensor: regard.explain(inputs()[0], tensor, inputs()[2]),
}


@pytest.mark.parametrize("name", USES)
def test_a_subclass_with_its_own_torch_function_is_refused(name):
    with pytest.raises(TypeError, match="a Lazy, whose memory need not hold its values"):
        USES[name](lazy(3, H, S, D) if name in {"query", "key"} else lazy(L, S))


def test_a_recording_does_not_see_what_such_a_subclass_computes_itself():
    with pytest.raises(regard.Error, match="no attention call was seen"), regard.record():
        F.scaled_dot_product_attention(*inputs(), attn_mask=lazy(L, S))


@pytest.mark.parametrize("name", BIASES)
def test_a_causal_bias_is_read_before_torch_chooses_a_kernel(name, monkeypatch):
    """Some of its kernels on a GPU are no SDPA call."""
    bias = BIASES[name]()
    monkeypatch.setattr(type(bias), "_dispatch", staticmethod(lambda query, *_, **__: query))
    with regard.record() as recording:
        F.scaled_dot_product_attention(*inputs(), attn_mask=bias)
    assert len(recording) == 1


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_a_recording_refuses_jagged_tensors():
    rows = [normal(length, H, D) for length in (L, S)]
    nested = torch.nested.nested_tensor(rows, layout=torch.jagged).transpose(1, 2)
    with pytest.raises(regard.Error, match="nested tensors"), regard.record():
        F.scaled_dot_product_attention(nested, nested, nested)


def test_a_causal_bias_as_a_dense_mask_is_refused_with_the_cure():
    with pytest.raises(TypeError, match=r"mask is a CausalBias.*mask=regard\.causal\(offset=0\)"):
        regard.dense(causal_upper_left(L, S))


class Halved(torch.Tensor):
    """Lets attention run, and works on what comes out."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        result = super().__torch_function__(function, types, args, kwargs)
        return result.as_subclass(torch.Tensor) / 2 if function is regard.attention else result


def test_a_query_with_its_own_torch_function_is_called():
    query, key, value = inputs()
    context = regard.attention(query.as_subclass(Halved), key, value)
    assert torch.equal(context, regard.attention(query, key, value) / 2)


class Plain(torch.Tensor):
    """A subclass that means what it holds."""


@pytest.mark.parametrize("kind", [torch.nn.Parameter, Plain])
def test_plain_subclasses_are_accepted(kind):
    query, key, value = inputs()
    bias = normal(L, S, seed=3)
    tensor = bias.as_subclass(kind) if kind is Plain else kind(bias)
    context = regard.attention(query, key, value, bias=tensor)
    assert torch.equal(context, regard.attention(query, key, value, bias=bias))


# In a process of its own: the type checks of the test run can't look at tensors without a shape.
NESTED = """
import warnings
import torch, regard

warnings.simplefilter("ignore")  # nested tensors are a prototype
for layout in (torch.strided, torch.jagged):
    rows = [torch.randn(3, 4), torch.randn(2, 4)]
    nested = torch.nested.nested_tensor(rows, layout=layout)
    for call in (regard.attention, regard.scaled_dot_product_attention, regard.explain):
        try:
            call(nested, nested, nested)
        except TypeError as error:
            assert "query is a nested tensor" in str(error) and "regard.padding" in str(error)
        else:
            raise AssertionError((layout, call))
"""


@pytest.mark.thorough
def test_nested_tensors_are_refused_with_the_cure():
    run_script(NESTED)


@pytest.fixture
def mesh():
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("call", [regard.attention, regard.scaled_dot_product_attention])
def test_a_dtensor_is_refused_with_the_cure(mesh, call):
    from torch.distributed.tensor import Replicate, distribute_tensor

    query, key, value = inputs()
    spread = distribute_tensor(query, mesh, [Replicate()])
    with pytest.raises(TypeError, match=r"query is a DTensor, .*query\.to_local\(\)"):
        call(spread, key, value)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8_is_refused_with_the_cure(dtype):
    tensors = [t.to(dtype) for t in inputs()]
    with pytest.raises(TypeError, match=r"query is torch.float8.*query\.to\(torch\.bfloat16\)"):
        regard.attention(*tensors)
    with pytest.raises(TypeError, match=r"mask is torch.float8.*mask\.to\(torch\.bfloat16\)"):
        regard.dense(torch.zeros(L, S).to(dtype))
