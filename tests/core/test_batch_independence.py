"""Results do not depend on the rest of the batch or threads; bitwise for the native kernels.

Torch's own products may round by the shape of what they are handed, and by which thread computes
what. Backends that are made of them, and they alone, are held to their rounding.
"""

import itertools

import pytest
import torch
from support.cpu_paths import ON_CPU, SETS
from support.draws import normal

import regard
from regard.pattern.readouts import Distance, Entropy, Image, Mass, Offsets, Received, TopK

B, H, G = 3, 3, 1  # odd, so that the entries of a batch start at odd places in memory
READOUTS = (TopK(3), Entropy(), Received(), Distance(), Offsets(5), Mass(slice(0, 4)), Image(4, 3))
LENGTHS = [(1, 700), (7, 7), (31, 37), (257, 331)]


def mask_of(name, keys, entries):
    """A mask of some entries of the batch; each has its own padding, window and documents."""
    index = torch.arange(keys)
    if name == "none":
        return None
    if name == "causal":
        return regard.causal()
    if name == "padding":
        keep = torch.stack([index >= 0, index >= keys // 3, index < keys - keys // 4])
        return regard.causal() & regard.padding(keep[entries])
    if name == "documents":
        ids = torch.stack([index // 5, index // (keys // 2 + 1), index * 0])
        return regard.causal() & regard.documents(ids[entries])
    assert name == "dense"
    return regard.dense(normal(B, 1, 1, keys, seed=7)[entries] > -1)


def everything(tensors, entries, mask, backend):
    """All results and gradients, each with the batch as its first axis."""
    query, key, value = (t[entries].clone().requires_grad_() for t in tensors)
    options = {"mask": mask, "backend": backend}
    context, pattern = regard.attention_with_pattern(query, key, value, **options)
    gradients = torch.autograd.grad(context.square().sum(), (query, key, value))
    own = regard.Pattern(query, key, mask=mask)
    spread = value.detach().repeat_interleave(H // G, 1)
    readouts = own.read(*READOUTS)
    return {
        "context": context.detach(),
        "logsumexp": pattern.logsumexp,
        **{
            f"gradient of {n}": g for n, g in zip(("query", "key", "value"), gradients, strict=True)
        },
        "weights": own.dense(),
        "pattern @ value": own @ spread,
        "rows @ pattern": normal(3, query.shape[-2], seed=8) @ own,
        "top weights": readouts[0].weights,
        "top positions": readouts[0].positions,
        **{type(r).__name__: t for r, t in zip(READOUTS[1:], readouts[1:], strict=True)},
    }


def inputs(queries, keys, dim):
    shapes = (B, H, queries, dim), (B, G, keys, dim), (B, G, keys, dim)
    return [normal(*shape, seed=seed) for seed, shape in enumerate(shapes)]


BACKENDS = list(itertools.product(ON_CPU if SETS else ON_CPU[1:], [13, 64]))
OF_BACKENDS = ("context", "logsumexp")


def agree(backend, what, one, other):
    """To the last bit, unless it comes of torch's products: sums of some hundred numbers."""
    if backend == "native" or not (what in OF_BACKENDS or what.startswith("gradient")):
        return torch.equal(one, other)
    return torch.allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.each_once
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("name", ["none", "causal", "padding", "documents", "dense"])
@pytest.mark.parametrize(("backend", "dim"), BACKENDS)
def test_results_do_not_depend_on_the_rest_of_the_batch(backend, dim, name, lengths):
    tensors, keys = inputs(*lengths, dim), lengths[1]
    together = everything(tensors, slice(None), mask_of(name, keys, slice(None)), backend)
    for entry in range(B):
        only = slice(entry, entry + 1)
        alone = everything(tensors, only, mask_of(name, keys, only), backend)
        for what, result in alone.items():
            assert agree(backend, what, result[0], together[what][entry]), (what, entry)


@pytest.mark.each_once
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("name", ["causal", "padding"])
@pytest.mark.parametrize(("backend", "dim"), BACKENDS)
def test_results_do_not_depend_on_the_number_of_threads(threads, backend, dim, name, lengths):
    tensors, mask = inputs(*lengths, dim), mask_of(name, lengths[1], slice(None))
    threads(1)
    one = everything(tensors, slice(None), mask, backend)
    threads(2)
    two = everything(tensors, slice(None), mask, backend)
    for what, result in one.items():
        assert agree(backend, what, result, two[what]), what
