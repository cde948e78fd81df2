"""What every backend is held to: the oracle, and twice the error of torch's own kernel."""

import functools
import types

import torch

import regard
from support.cases import HALF, Case, close
from support.draws import normal


def as_exact_as_torch(case, backend, device="cpu"):
    tensors = (t.to(device) for t in (case.query, case.key, case.value))
    options = {n: o.to(device) if torch.is_tensor(o) else o for n, o in case.options.items()}
    context, pattern = regard.attention_with_pattern(*tensors, **options, backend=backend)
    context, logsumexp = context.cpu(), pattern.logsumexp.cpu()
    # The memory-efficient kernel of CUDA makes up a float32 product of three TF32 ones.
    loose = 2**-18 if device == "cuda" and case.dtype == torch.float32 else 0
    assert context.dtype == case.dtype
    assert context.shape == (*case.query.shape[:-1], case.value.shape[-1])
    # With a sink, the context is rounded to its dtype twice: before its share is taken, and after.
    floor = (2 * torch.finfo(case.dtype).eps + case.rounding + loose) * float(
        case.value.abs().max()
    )
    close(context, case.exact.context, case.torchs_own(), case.fully_masked, floor)
    assert not bool(context[case.fully_masked].any())

    reference = torch.logsumexp(case.plain_logits(), -1)
    # For half precisions the native exponential is good to 18 bits: enough for weights that are
    # rounded to 8 or 11, and 1e-5 in the logarithm of their sum.
    floor = 1e-5 if case.dtype in HALF else 4 * (case.rounding + loose)
    close(logsumexp, case.exact.logsumexp, reference, case.fully_masked, floor)
    assert bool((logsumexp[case.fully_masked] == -torch.inf).all())


class Large(Case):
    """A problem too large for the oracle's loops: `explain` in float64 stands in for it."""

    @functools.cached_property
    def exact(self):
        tensors = (t.double() for t in (self.query, self.key, self.value))
        steps = regard.explain(*tensors, **self.options)
        return types.SimpleNamespace(context=steps.context, logsumexp=steps.logsumexp)

    @property
    def rounding(self):
        """Among so many numbers luck evens out: no more than one rounding is allowed for."""
        return torch.finfo(self.exact_dtype).eps


def large(queries, keys, mask, *, dtype=torch.float32, batch=2, heads=3, groups=1, **others):
    query, key = normal(batch, heads, queries, 8, seed=1), normal(batch, groups, keys, 8, seed=2)
    offset = keys - queries if mask.offset is None else mask.offset
    first = torch.as_tensor(offset).expand(batch)[:, None]
    return Large(
        query=query.to(dtype),
        key=key.to(dtype),
        value=normal(batch, groups, keys, 5, seed=3, dtype=dtype),
        make_mask=lambda: mask,
        others=others,
        visible=mask.visible(queries, keys, (batch, heads)),
        positions=first + torch.arange(queries),
    )


def interval_masks(queries, keys):
    index = torch.arange(keys)
    keep = torch.stack([index >= keys // 3, index < keys - 7])
    ids = torch.stack([index // 97, index // 300])
    return {
        "causal": regard.causal(),
        "top left": regard.causal(offset=0),
        "window": regard.causal() & regard.window(37),
        "padding": regard.causal() & regard.padding(keep),
        "documents": regard.documents(ids),
        "prefix": regard.masks.prefix(torch.tensor([11, 3])),
        "offsets": regard.causal(offset=torch.tensor([-5, 2])),
        "dense": regard.causal() & regard.dense(normal(queries, keys) > -1),
        "hidden": regard.causal()
        & regard.masks.hide(slice(3, 101), slice(50, None, 2), heads=[0, 2]),
        "everything": regard.Mask(),
    }
