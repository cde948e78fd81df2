"""A model's loss: that of its logits, whichever way it is computed."""

import pytest
import torch
import torch.nn.functional as F

import regard
from regard.backends import native
from regard.gpt import GPT, GPTConfig, _loss
from regard.gpt.layers import Embedding

CONFIG = {"vocab_size": 29, "context": 13, "layers": 2, "heads": 3, "dim": 42}
IDS = torch.arange(5 * 11).reshape(5, 11) * 7 % 29
TARGETS = IDS * 5 % 29
IGNORED = TARGETS.where(IDS % 4 > 0, -100)
WEIGHTS = 1 / (1 + IDS.float())

kernels = pytest.mark.skipif(native.why_missing() is not None, reason="there is no kernel")


def gpt(kind=GPT):
    torch.manual_seed(0)
    return kind(GPTConfig(**CONFIG))


def from_logits(model, ids, targets, weights=None, mask=None):
    logits = model(ids, mask=mask).double().flatten(0, -2)
    if weights is None:
        return F.cross_entropy(logits, targets.flatten())
    losses = F.cross_entropy(logits, targets.flatten(), reduction="none")
    return losses @ weights.double().flatten()


def with_gradients(model, loss):
    return loss, *torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad])


@pytest.fixture
def portions(monkeypatch):
    """How many rows each call of the kernel had; a few of them here, 11 for 55."""
    monkeypatch.setattr(_loss, "_PORTION_BYTES", 0)
    monkeypatch.setattr(_loss, "_MIN_PORTION_ROWS", 11)
    return _rows_of_calls(monkeypatch)


def _rows_of_calls(monkeypatch):
    calls, compute = [], native.compute_cross_entropy

    def counting(logits, *arguments, **options):
        calls.append(len(logits))
        compute(logits, *arguments, **options)

    monkeypatch.setattr(native, "compute_cross_entropy", counting)
    return calls


@kernels
@pytest.mark.parametrize("rows", [11, 13, 55, 1000])
@pytest.mark.parametrize(
    ("targets", "weights"), [(TARGETS, None), (IGNORED, None), (IGNORED, WEIGHTS)]
)
def test_it_is_that_of_the_logits_in_float64(targets, weights, rows, portions, monkeypatch):
    monkeypatch.setattr(_loss, "_MIN_PORTION_ROWS", rows)
    model = gpt()
    ours = with_gradients(model, model.loss(IDS, targets, weights))
    assert sum(portions) == 55
    assert len(portions) == -(-55 // rows)
    double = gpt().double()
    exact = with_gradients(double, from_logits(double, IDS, targets, weights))
    for mine, other in zip(ours, exact, strict=True):
        # Some tens of roundings of float32 in sums of up to 55 rows.
        torch.testing.assert_close(mine.double(), other, rtol=1e-4, atol=5e-6)


@kernels
def test_under_autocast_products_round_as_those_of_modules(portions):
    model = gpt()
    results = []
    for loss in (model.loss, lambda *given: from_logits(model, *given)):
        with torch.autocast("cpu", torch.bfloat16):
            value = loss(IDS, IGNORED, WEIGHTS)
        results.append(with_gradients(model, value))
    assert portions == [11] * 5
    for mine, theirs in zip(*results, strict=True):
        # A library's product may round otherwise by its layout: a few of bfloat16's steps of 2⁻⁸.
        assert (mine - theirs).abs().max() <= 0.02 * theirs.abs().max()
        assert mine.dtype == torch.float32


@kernels
def test_a_model_in_bfloat16_has_gradients_in_it(portions):
    model = gpt().bfloat16()
    mine = with_gradients(model, model.loss(IDS, TARGETS))
    assert portions == [11] * 5
    theirs = with_gradients(model, from_logits(model, IDS, TARGETS))
    for one, other in zip(mine, theirs, strict=True):
        assert one.dtype == (torch.bfloat16 if one.ndim else torch.float32)
        assert (one - other).abs().max() <= 0.03 * other.abs().max()  # as above, in all layers


@kernels
@pytest.mark.parametrize("frozen", ["wte.weight", "ln_f.weight"])
def test_a_frozen_parameter_has_no_gradient(frozen, portions):
    model = gpt()
    names = ["loss", *dict(model.named_parameters())]
    whole = dict(zip(names, with_gradients(model, model.loss(IDS, TARGETS)), strict=True))
    model.get_parameter(frozen).requires_grad_(False)
    left = [name for name in whole if name != frozen]
    for name, mine in zip(left, with_gradients(model, model.loss(IDS, TARGETS)), strict=True):
        torch.testing.assert_close(mine, whole[name])
    assert portions == [11] * 10


@kernels
@pytest.mark.parametrize(("vocabulary", "expected"), [(29, [1100]), (1031, [1024, 76])])
def test_portions_are_of_two_mebibytes_or_1024_rows(vocabulary, expected, monkeypatch):
    model = GPT(GPTConfig(**CONFIG | {"vocab_size": vocabulary}))
    ids = IDS.repeat(20, 1)  # 1,100 rows; of 1,031 logits 508 make two mebibytes
    calls = _rows_of_calls(monkeypatch)
    loss = model.loss(ids, ids)
    assert calls == expected
    # A sum of 1,100 rows in float32.
    torch.testing.assert_close(loss.double(), from_logits(model, ids, ids), rtol=1e-5, atol=0)


@kernels
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_weights_may_be_of_any_dtype(dtype, portions):
    model, weights = gpt(), WEIGHTS.to(dtype)
    loss = model.loss(IDS, TARGETS, weights)
    assert loss.dtype == torch.float32
    assert portions == [11] * 5
    exact = from_logits(model, IDS, TARGETS, weights)
    torch.testing.assert_close(loss.double(), exact, rtol=1e-5, atol=0)  # a sum in float32


def test_weights_may_have_a_gradient(portions):
    model, weights = gpt(), WEIGHTS.clone().requires_grad_()
    (ours,) = torch.autograd.grad(model.loss(IDS, TARGETS, weights), weights)
    (exact,) = torch.autograd.grad(from_logits(model, IDS, TARGETS, weights), weights)
    torch.testing.assert_close(ours, exact, rtol=1e-5, atol=0)  # losses in float32
    assert not portions


def test_targets_are_checked_against_the_embeddings_that_there_are():
    model = gpt()
    model.wte = Embedding(19, 42)
    with pytest.raises(ValueError, match="targets runs from 0 to 28 and the vocabulary from 0 to"):
        model.loss(IDS % 19, TARGETS)


@kernels
def test_a_loss_may_be_scaled_and_its_gradient_computed_again(portions):
    model = gpt()
    single = with_gradients(model, model.loss(IDS, TARGETS))[1:]
    loss = model.loss(IDS, TARGETS)
    (3 * loss).backward(retain_graph=True)
    loss.backward()
    for parameter, one in zip(model.parameters(), single, strict=True):
        torch.testing.assert_close(parameter.grad, 4 * one, rtol=1e-5, atol=1e-6)
    assert portions == [11] * 10


@kernels
def test_a_gradient_of_a_loss_has_no_derivative():
    model = gpt()
    loss = model.loss(IDS, TARGETS)
    first = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    for one, parameter in zip(first, model.parameters(), strict=True):
        with pytest.raises(regard.Error, match="first derivatives only"):
            torch.autograd.grad(one.sum(), parameter, retain_graph=True)
    with pytest.raises(regard.Error, match=r"model\.double"):
        first[0].sum().backward()


@kernels
def test_a_factor_of_a_loss_in_bfloat16_is_not_rounded():
    model, factor = gpt(), 1 + 0.98 * 2**-8  # halfway to bfloat16's next number
    results = []
    for scale in (1.0, factor):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model.loss(IDS, TARGETS)
        results.append(torch.autograd.grad(scale * loss, model.wpe.weight)[0])
    # A number of eight bits times the factor rounds up or down by its mantissa, and all together
    # about evenly; a rounded factor would be 1.
    ratio = (results[1] * results[0]).sum() / results[0].square().sum()
    assert abs(ratio / factor - 1) < 0.5 * 2**-8


@kernels
def test_without_gradients_none_are_computed(portions):
    model = gpt()
    with torch.no_grad():
        loss = model.loss(IDS, TARGETS)
    assert portions == [11] * 5
    assert not loss.requires_grad
    torch.testing.assert_close(loss, model.loss(IDS, TARGETS))
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    assert not model.loss(IDS, TARGETS).requires_grad


def test_a_mask_and_ids_without_a_batch():
    model = gpt()
    spans = regard.documents(torch.tensor([0] * 5 + [1] * 6))
    for ids, targets in ((IDS, TARGETS), (IDS[0], TARGETS[0]), (IDS.int(), TARGETS.int())):
        exact = from_logits(model, ids, targets.long(), mask=spans)
        mine = model.loss(ids, targets, mask=spans)
        torch.testing.assert_close(mine.double(), exact, rtol=1e-5, atol=0)
    assert model.loss(IDS[0], TARGETS[0]) != model.loss(IDS[0], TARGETS[0], mask=spans)


class Doubled(GPT):
    def forward(self, ids, **options):
        return 2 * super().forward(ids, **options)


def test_hooks_and_subclasses_have_their_say(portions):
    hooked, doubled = gpt(), gpt(Doubled)
    hooked.register_forward_hook(lambda module, inputs, logits: 2 * logits)
    expected = from_logits(doubled, IDS, TARGETS)
    for model in (hooked, doubled):
        loss = model.loss(IDS, TARGETS).double()
        torch.testing.assert_close(loss, expected, rtol=1e-5, atol=0)  # a sum in float32
    assert not portions


def test_float64_float16_and_transforms_are_left_to_torch(portions):
    model = gpt()
    expected = from_logits(model, IDS, TARGETS)

    def loss(weight):
        values = dict(model.named_parameters()) | {"wte.weight": weight}
        return torch.func.functional_call(
            _Loss(model), {f"model.{n}": v for n, v in values.items()}
        )

    gradient = torch.func.grad(loss)(model.wte.weight)
    torch.testing.assert_close(
        gradient, with_gradients(model, model.loss(IDS, TARGETS))[1], rtol=1e-4, atol=1e-6
    )
    portions.clear()
    with torch.autocast("cpu", torch.float16):
        torch.testing.assert_close(model.loss(IDS, TARGETS).double(), expected, rtol=1e-2, atol=0)
    double = model.double()
    assert double.loss(IDS, TARGETS).dtype == torch.float64
    torch.testing.assert_close(double.loss(IDS, TARGETS), expected, rtol=1e-5, atol=0)
    assert not portions


class _Loss(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self):
        return self.model.loss(IDS, TARGETS)


def test_a_tensor_that_is_a_view_of_another_layout(portions):
    model = gpt()
    exact = model.loss(IDS, TARGETS, WEIGHTS)
    ids, targets, weights = (t.t().contiguous().t() for t in (IDS, TARGETS, WEIGHTS))
    assert torch.equal(model.loss(ids, targets, weights), exact)


@pytest.mark.parametrize(
    ("targets", "weights", "kind", "message"),
    [
        (TARGETS.float(), None, TypeError, r"targets is torch\.float32; expected .* int64"),
        (TARGETS[:, 1:], None, ValueError, r"targets has shape \(5, 10\) and ids \(5, 11\)"),
        (TARGETS, WEIGHTS[0], ValueError, r"weights has shape \(11,\) and ids \(5, 11\)"),
        (TARGETS, IDS, TypeError, r"weights is torch\.int64; expected a tensor of floats"),
        (TARGETS, 2.0, TypeError, r"weights is float; expected a tensor of floats"),
        (TARGETS + 1, None, ValueError, "targets runs from 1 to 29 and the vocabulary from 0 to"),
        (TARGETS - 1, None, ValueError, "targets runs from -1 to 27 .* target has -100"),
    ],
)
def test_what_is_wrong_is_named(targets, weights, kind, message):
    with pytest.raises(kind, match=message):
        gpt().loss(IDS, targets, weights)


def test_a_sum_of_nothing_is_zero_and_a_mean_an_error():
    nothing = IDS[:0]
    assert gpt().loss(nothing, nothing, WEIGHTS[:0]) == 0
    with pytest.raises(ValueError, match=r"ids has shape \(0, 11\): the mean over zero positions"):
        gpt().loss(nothing, nothing)
    assert gpt().loss(IDS, torch.full_like(IDS, -100)).isnan()  # as torch's


def test_ids_are_checked_as_those_of_a_call():
    with pytest.raises(ValueError, match="ids runs from"):
        gpt().loss(IDS + 1, TARGETS)
    with pytest.raises(TypeError, match="ids is list"):
        gpt().loss([1, 2], TARGETS)
