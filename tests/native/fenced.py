"""Attention on tensors between guard pages, whose access crashes the process.

test_fences.py runs this in a process of its own, for one set of instructions: a read or a write
before the first or past the last byte of any tensor kills it. What was about to be computed stands
in the last line of its output. With the argument ``all`` each size meets each dtype and kind, else
every two of these values meet. With the argument ``overrun`` it lets the kernels read too far.

Axes: B batch, H query heads, G key/value heads, L queries, S keys, D head dimension of query and
key, Dv of value.
"""

import contextlib
import ctypes
import itertools
import mmap
import sys
from unittest import mock

import torch

import regard
from regard.backends import native
from regard.backends.native._arguments import Arguments, vectors
from regard.backends.native._structs import PROBLEM, TENSOR, pack_integer_into
from regard.backends.native.library import call
from regard.inputs import check
from regard.pattern.readouts import Distance, Entropy, Image, Mass, Max, Offsets, Received, TopK

PAGE = mmap.PAGESIZE
LIBC = ctypes.CDLL(None, use_errno=True)
STRAY = 0xFF  # bytes beside a tensor: NaN in every dtype, −1 as an index
NOBODYS = 0  # PROT_NONE

# B, H, G, L, S, D, Dv. Odd sizes, so that no row fills whole vectors; more rows than a task has
# and more keys than a block; few rows, which are decoded; the smallest and the widest.
SIZES = [
    (1, 1, 1, 1, 1, 1, 1),
    (2, 3, 1, 19, 17, 3, 5),
    (1, 6, 2, 67, 211, 13, 7),
    (1, 2, 2, 65, 193, 64, 37),
    (1, 1, 1, 131, 577, 33, 19),
    (1, 1, 1, 17, 19, 255, 256),
    (2, 4, 2, 1, 523, 64, 64),
    (1, 8, 2, 1, 1031, 13, 29),
    (1, 1, 1, 3, 15, 31, 33),
]
# V, I, O. The last has whole blocks of inputs, which one vector goes over in a loop of its own.
MAPS = [(1, 1, 1), (8, 19, 131), (7, 67, 5), (3, 16, 64), (1, 768, 67)]
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
READOUTS = (TopK(5), Max(), Entropy(), Received(), Distance(), Offsets(7), Mass([0]), Image(3, 2))
ALLOCATING = (
    *((torch.Tensor, name) for name in ("new_empty", "new_zeros", "contiguous", "float", "long")),
    *((torch, name) for name in ("empty_like", "zeros")),
)
KINDS = ("plain", "transposed", "everything")


class Fences:
    """Puts tensors between two forbidden pages."""

    def __init__(self, *, at_end):
        self.at_end = at_end
        self.regions = []
        self.addresses = set()

    @contextlib.contextmanager
    def everywhere(self):
        """Put all that `regard` lays out for the kernels there, too."""
        pack = Arguments.pack

        def allocating(function):
            return lambda *args, **kwargs: self.around(function(*args, **kwargs))

        def packed(arguments):
            return pack(
                Arguments(
                    *(self.around(x) if isinstance(x, torch.Tensor) else x for x in arguments)
                )
            )

        with contextlib.ExitStack() as patches:
            for home, name in ALLOCATING:
                stand_in = allocating(getattr(home, name))
                patches.enter_context(mock.patch.object(home, name, stand_in))
            patches.enter_context(mock.patch.object(Arguments, "pack", packed))
            yield

    def around(self, tensor):
        """Copy a tensor, strides and all, so that it ends at one page or begins after another."""
        if tensor is None or tensor.numel() == 0 or tensor.requires_grad:
            return tensor
        axes = zip(tensor.shape, tensor.stride(), strict=True)
        count = 1 + sum((size - 1) * stride for size, stride in axes)
        size = count * tensor.element_size()
        inner = -(-size // PAGE) * PAGE
        region = mmap.mmap(-1, inner + 2 * PAGE)
        region.write(bytes([STRAY]) * len(region))
        start = PAGE + (inner - size if self.at_end else 0)
        flat = torch.frombuffer(region, dtype=tensor.dtype, count=count, offset=start)
        flat.copy_(tensor.as_strided((count,), (1,)))
        address = flat.data_ptr() - start
        for page in (address, address + PAGE + inner):
            if LIBC.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(PAGE), NOBODYS) != 0:
                raise OSError(ctypes.get_errno(), "mprotect")
        self.regions.append((region, slice(PAGE, start), slice(start + size, PAGE + inner)))
        self.addresses.add(flat.data_ptr())
        return flat.as_strided(tensor.shape, tensor.stride())

    def assert_untouched(self):
        """No byte beside a tensor, on its own pages, has been written."""
        for region, *besides in self.regions:
            for beside in besides:
                assert not region[beside].strip(bytes([STRAY])), "a byte beside a tensor changed"


def normal(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def problem(sizes, dtype, kind):
    """Arguments of an attention; on request, every kind of tensor that the kernels take."""
    batch, heads, groups, queries, keys, dim, dim_value = sizes
    tensors = {
        "query": normal(batch, heads, queries, dim, dtype=dtype, seed=1),
        "key": normal(batch, groups, keys, dim, dtype=dtype, seed=2),
        "value": normal(batch, groups, keys, dim_value, dtype=dtype, seed=3),
    }
    if kind == "plain":
        return tensors, {"mask": regard.causal()}
    if kind == "transposed":  # (B, L, H, D), as a projection leaves them
        turned = {n: t.transpose(1, 2).contiguous().transpose(1, 2) for n, t in tensors.items()}
        return turned, {}
    seen = normal(batch, heads, queries, keys, seed=4) > -1
    padding = torch.arange(keys).expand(batch, keys) >= keys // 3
    tensors |= {
        "bias": normal(batch, heads, queries, keys, seed=5),
        "alibi": normal(heads, seed=6).abs(),
        "sink": normal(heads, seed=7),
    }
    spans = regard.masks.hide([0, keys - 1], heads=0) & regard.masks.hide(slice(None, None, 9))
    mask = regard.causal() & regard.padding(padding) & regard.dense(seen) & spans
    return tensors, {"mask": mask, "dropout": 0.25}


def everything(tensors, options, around):
    """Context, gradients and readouts; `around` lays a tensor out."""
    leaves = {name: around(t).requires_grad_() for name, t in tensors.items()}
    *lead, queries, _ = leaves["query"].shape
    keys, dim_value = leaves["value"].shape[-2:]
    plain = {name: t for name, t in options.items() if name != "dropout"}
    with torch.no_grad():
        detached = {name: around(t) for name, t in tensors.items()}
        yield "context", regard.attention(**detached, **plain, backend="native")
    context, pattern = regard.attention_with_pattern(
        **leaves, **options, generator=torch.Generator().manual_seed(8), backend="native"
    )
    yield "context of the operator", context
    weight = around(normal(*lead, queries, dim_value, dtype=context.dtype, seed=9))
    yield from zip(leaves, torch.autograd.grad(context, list(leaves.values()), weight), strict=True)
    for named, seen in (("known", pattern), ("unknown", pattern_of(detached, plain))):
        top, *rest = seen.read(*READOUTS)
        yield from ((f"{named} logsumexp, readout {i}", t) for i, t in enumerate((*top, *rest)))
        yield f"{named} logsumexp, columns", seen[..., :, keys // 2 :].contiguous()
        yield f"{named} logsumexp, product", around(normal(*lead, 3, queries)) @ seen


def pattern_of(tensors, options):
    return regard.Pattern(**{n: t for n, t in tensors.items() if n != "value"}, **options)


def run(sizes, dtype, kind, *, at_end):
    """Compute between fences what was computed without, to the last bit."""
    tensors, options = problem(sizes, dtype, kind)
    wanted = everything(tensors, options, lambda tensor: tensor.clone())
    fences = Fences(at_end=at_end)
    with fences.everywhere():
        results = list(everything(tensors, options, fences.around))
    for (what, result), (_, expected) in zip(results, wanted, strict=True):
        assert torch.equal(result, expected), what
        if what in {"context", "query", "key", "value"}:  # the others are summed up, or copied
            assert result.data_ptr() in fences.addresses, f"{what} was laid out without fences"
    fences.assert_untouched()


def run_map(vectors, inputs, outputs, dtype, *, at_end):
    """The same of a linear map."""
    shapes = ((vectors, inputs), (outputs, inputs), (outputs,))
    operands = tuple(normal(*shape, dtype=dtype, seed=i) for i, shape in enumerate(shapes))
    wanted = native.matvec(*operands)
    fences = Fences(at_end=at_end)
    with fences.everywhere():
        result = native.matvec(*map(fences.around, operands))
    assert torch.equal(result, wanted)
    assert result.data_ptr() in fences.addresses, "the result was laid out without fences"
    fences.assert_untouched()


def overrun():
    """Let the kernels believe in a wider query and key than there are."""
    tensors, _ = problem(SIZES[0], torch.float32, "plain")
    fences = Fences(at_end=True)
    query, key, value = (fences.around(t) for t in tensors.values())
    packed = Arguments.of(check(query, key, value)).pack()
    lie = bytearray(packed.numbers)
    pack_integer_into(lie, PROBLEM.offset("dim"), query.shape[-1] + 1)
    context = TENSOR.pack(*vectors(torch.empty_like(value)))
    call("regard_forward", bytes(lie), context, None)


def main():
    rows = itertools.product(*map(enumerate, (SIZES, DTYPES, KINDS)), (True, False))
    for (i, sizes), (j, dtype), (k, kind), at_end in rows:
        if (i + j + k) % len(KINDS) and sys.argv[1:] != ["all"]:
            continue
        where = "at the end" if at_end else "at the start"
        print(*sizes, dtype, kind, where, flush=True)  # noqa: T201 - the last line tells
        run(sizes, dtype, kind, at_end=at_end)
    for sizes, dtype, at_end in itertools.product(MAPS, DTYPES, (True, False)):
        print(*sizes, dtype, "map", flush=True)  # noqa: T201 - the last line tells
        run_map(*sizes, dtype, at_end=at_end)
    print("done")  # noqa: T201


if __name__ == "__main__":
    overrun() if sys.argv[1:] == ["overrun"] else main()
