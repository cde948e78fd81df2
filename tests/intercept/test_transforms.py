"""Calls under the transforms of `torch.func`: recorded as without them, or refused by name."""

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from record.models.classes import CASES
from support.interception import B, Block, D, H, L, S, close, written_out
from torch import nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

import regard
from regard.intercept import observe_contexts
from regard.record import RecordError, read_while_running

pytestmark = [  # of torch itself: of kernels without a way for vmap, and of jvp
    pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning"),
]

VISIBLE = torch.rand(B, H, L, S, generator=torch.Generator().manual_seed(3)) < 0.7
VISIBLE[..., 0] = True


def sdpa(query, key, **options):
    return F.scaled_dot_product_attention(query, key, key, **options)


def ours(query, key, **options):
    bias = options.get("attn_mask")
    return regard.attention(query, key, key, mask=None if bias is None else regard.dense(bias))


TRANSFORMS = {
    "grad": lambda f, q: grad(lambda q: f(q).square().sum())(q),
    "vjp": lambda f, q: vjp(f, q)[1](torch.ones(B, H, L, D))[0],
    "jvp": lambda f, q: jvp(f, (q,), (q.flip(0),))[1],
    "jacrev": lambda f, q: jacrev(lambda q: f(q).sum((0, 1, 2)))(q),
    "jacfwd": lambda f, q: jacfwd(lambda q: f(q).sum((0, 1, 2)))(q),
    "hessian": lambda f, q: hessian(lambda q: f(q)[0, 0, 0, 0])(q),
    "grad in grad": lambda f, q: grad(lambda q: grad(lambda q: f(q).sum())(q).square().sum())(q),
}


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
@pytest.mark.parametrize("attend", [sdpa, ours])
@pytest.mark.parametrize("mask", [None, VISIBLE, torch.randn(1, L, S)])
def test_patterns_and_derivatives_are_as_without(transform, attend, mask):
    query, key = torch.randn(B, H, L, D), torch.randn(B, H, S, D)
    options = {} if mask is None else {"attn_mask": mask}

    def f(query):
        return attend(query, key, **options)

    with sdpa_kernel(SDPBackend.MATH):  # torch's fast kernels have no derivatives forward
        expected = transform(f, query)
        with regard.record() as recording:
            actual = transform(f, query)
            f(query + 1)
    assert torch.equal(actual, expected)
    close(recording[0], written_out(query, key, mask=mask))
    close(recording.layers[-1].pattern, written_out(query + 1, key, mask=mask))


@pytest.mark.parametrize("read", [None, [regard.readouts.Entropy()]])
@pytest.mark.parametrize("how", ["sdpa", "eager"])
def test_gradients_by_a_functional_call_of_a_model(how, read):
    case = CASES["llama"]
    model, (arguments, real) = case.build(how), case.call()
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(parameters):
        logits = functional_call(model, parameters, kwargs=arguments).logits
        return logits[real["self"]].square().mean()

    expected = grad(loss)(parameters)
    with torch.no_grad():
        eager = case.build("eager")(**arguments, output_attentions=True).attentions
    with regard.record(model) if read is None else read_while_running(model, *read) as seen:
        actual = grad(loss)(parameters)
    for parameter, exact in expected.items():
        scale = exact.abs().max()
        difference = (actual[parameter] - exact).abs().max()
        assert difference <= (0 if how == "sdpa" else 1e-4 * scale)
    rows = real["self"]
    for layer, weights in enumerate(eager):
        if read is None:
            actual, exact = seen[layer].dense(), weights
        else:
            actual = seen["entropy"].values[layer]
            exact = torch.special.entr(weights).sum(-1)
        actual, exact = (result.transpose(1, 2)[rows] for result in (actual, exact))
        torch.testing.assert_close(actual, exact, rtol=0, atol=1e-5)


def test_changes_under_gradients():
    """Those of a changed model, by functional calls and by autograd."""
    model, x = Block(), torch.randn(B, L, 12)
    parameters = dict(model.named_parameters())

    def loss(parameters):
        return functional_call(model, parameters, (x,)).square().sum()

    contexts = []
    with (
        regard.intervene(model) as change,
        regard.record(model) as recording,
        observe_contexts(lambda _, context: contexts.append(context)),
    ):
        change.knock_out(heads=1, keys=2, queries=slice(3, None))
        actual = grad(loss)({name: p.detach() for name, p in parameters.items()})
        expected = torch.autograd.grad(loss(parameters), list(parameters.values()))
    for one, other in zip(actual.values(), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(*contexts, rtol=1e-4, atol=1e-4)
    weights = recording[0].dense()
    assert bool(weights[:, 1, 3:, 2].eq(0).all())
    assert bool(weights[:, 0, 3:, 2].gt(0).all())


@dataclass(eq=False)
class Described(nn.Module):
    """A module whose options are the fields of a dataclass."""

    size: int

    def __post_init__(self):
        super().__init__()
        self.block = Block()

    def forward(self, x):
        return self.block(x)


def test_modules_that_are_dataclasses():
    model, x = Described(3), torch.randn(B, L, 12)
    with torch.no_grad(), regard.record(model) as plain:
        model(x)
    with regard.record(model) as recording, observe_contexts(lambda _, context: context.sum()):
        grad(lambda x: model(x).square().sum())(x)
    assert [layer.name for layer in recording.layers] == [layer.name for layer in plain.layers]
    close(recording[0], plain[0].dense().double())


def test_changes_of_a_batch_that_vmap_hides():
    model, x = Block(), torch.randn(5, B, L, 12)
    with regard.intervene(model) as change:
        change.knock_out(heads=1, keys=2, queries=slice(3, None))
        actual = vmap(model)(x)
        expected = torch.stack([model(one) for one in x])
    torch.testing.assert_close(actual, expected)


BATCHED = {
    "vmap": lambda f, x: vmap(f)(x),
    "vmap of grad": lambda f, x: vmap(grad(lambda q: f(q).sum()))(x),
    "grad of vmap": lambda f, x: grad(lambda x: vmap(f)(x).sum())(x),
    "a part of the arguments": lambda f, x: vmap(lambda q: f(q[:1], x[0, :1]))(x),
}


@pytest.mark.parametrize("batched", BATCHED.values(), ids=BATCHED)
@pytest.mark.parametrize("attend", [sdpa, ours])
@pytest.mark.parametrize("read", [None, [regard.readouts.Entropy()]])
def test_a_batch_that_vmap_hides_is_refused(batched, attend, read):
    x = torch.randn(5, B, H, L, D)
    with regard.record() if read is None else read_while_running(None, *read) as seen:
        attend(x[0], x[0])
        with pytest.raises(
            RecordError, match=r"inside torch\.vmap.*record.*outside of torch\.vmap"
        ):
            batched(lambda q, key=None: attend(q, q if key is None else key), x)
        attend(x[1], x[1])
    assert len(seen.layers if read is None else seen["entropy"].parts) == 2
    if read is None:
        for own, query in zip(seen, x, strict=False):
            close(own, written_out(query, query))


def test_a_mask_that_vmap_hides_is_refused():
    query, masks = torch.randn(B, H, L, D), torch.rand(5, L, L) < 0.7
    with regard.record() as recording:
        sdpa(query, query)
        with pytest.raises(RecordError, match=r"inside torch\.vmap"):
            vmap(lambda mask: sdpa(query, query, attn_mask=mask))(masks)
    assert len(recording) == 1


@pytest.mark.parametrize("gradients", [False, True])
def test_torchs_own_layers_with_a_mask_that_vmap_hides_are_refused(gradients):
    model = nn.MultiheadAttention(12, 2, batch_first=True).eval()
    x, hidden = torch.randn(5, B, L, 12), torch.rand(5, B, L) < 0.3
    hidden[..., 0] = False

    def call(x, hidden):
        return model(x, x, x, key_padding_mask=hidden, need_weights=False)[0]

    with torch.set_grad_enabled(gradients):
        expected = vmap(call)(x, hidden)
        with regard.record(model) as recording:
            call(x[0], hidden[0])
            with pytest.raises(RecordError, match=r"inside torch\.vmap"):
                vmap(call)(x, hidden)
        with pytest.raises(RecordError, match="no attention call"), regard.record(nn.Linear(1, 1)):
            assert torch.equal(vmap(call)(x, hidden), expected)
    assert len(recording) == 1


def test_other_models_may_be_batched():
    """Where another model is recorded; and what does not depend on the batch is recorded."""
    model, other, x = Block(), Block(), torch.randn(5, B, L, 12)
    expected = vmap(other)(x)
    with regard.record(model) as recording:
        assert torch.equal(vmap(other)(x), expected)
        vmap(lambda y: y + model(x[0]).sum())(x)
    close(recording[0], model.exact(x[0]))


def test_an_eager_model_with_a_mask_that_vmap_hides_is_refused():
    model = CASES["llama"].build("eager")
    masks = torch.zeros(5, 1, 1, L, L).masked_fill(torch.ones(L, L).triu(1).bool(), -torch.inf)
    x = torch.randn(5, 1, L, model.config.hidden_size)

    def call(x, mask):
        return model(inputs_embeds=x, attention_mask=mask, use_cache=False).logits

    vmap(call)(x, masks)
    with regard.record(model) as recording:
        with pytest.raises(RecordError, match=r"inside torch\.vmap"):
            vmap(call)(x, masks)
        call(x[0], masks[0])
    assert len(recording) == 2


class Biased(nn.Module):
    """Attention whose bias is made from what it is given."""

    def forward(self, query, key, bias):
        return sdpa(query, key, attn_mask=-bias)


def test_a_bias_keeps_its_gradient_under_a_change():
    """Also that of a transform around another one, which the mask says nothing of."""
    query, key, bias = (torch.randn(B, H, n, m) for n, m in ((L, D), (S, D), (L, S)))
    model, hidden = Biased(), torch.tensor([2])

    def slope(bias):
        inner = grad(lambda query: model(query, key, bias).square().sum())
        return inner(query).square().sum()

    with sdpa_kernel(SDPBackend.MATH):
        expected = grad(lambda bias: slope(bias.index_fill(-1, hidden, torch.inf)))(bias)
        with regard.intervene(model) as change:
            change.knock_out(keys=2)
            actual = grad(slope)(bias)
    torch.testing.assert_close(actual, expected)
