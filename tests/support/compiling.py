"""Compiles the kernels, as a problem would launch them, for a GPU that need not be there."""

import inspect
import json
import re
import sys
from contextlib import ExitStack
from unittest.mock import patch

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import regard
from regard.pattern.internal_readouts import LeftProduct, LogSumExp, Weights
from regard.pattern.readout import Sizes
from regard.pattern.readouts import (
    Blocks,
    Distance,
    Entropy,
    Image,
    Mass,
    Max,
    Offsets,
    Received,
    Spans,
    TopK,
)
from regard_experiments.gpu.triton import _compare, _inputs, _one_pass, _partial_sums, _read

KERNELS = {
    _read: (
        *("read_block_maxima", "read_columns", "read_diagonals", "read_logsumexp"),
        *("read_slices", "read_span_sums"),
    ),
    _one_pass: ("read_rows",),
    _partial_sums: ("fold",),
    _compare: ("read_divergence",),
}
TYPES = {
    torch.float64: "*fp64",
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.uint8: "*u8",
}
OPTIONS = ("num_warps", "num_stages")
LOOPS = {"fold": 0, "read_divergence": 2}
"""Products of queries and keys, where they are not in three loops."""
B, H, L = 1, 4, 4096
TOGETHER = (TopK(8), Entropy(), Received(), Distance(), Max(), Mass([1, 5]), Image(512, 512))


class Launches:
    """Stands for a kernel; keeps what it is launched with and computes nothing."""

    def __init__(self, kernel):
        self.kernel = kernel
        self.arguments = []

    def __getitem__(self, grid):
        return lambda **arguments: self.arguments.append(arguments)


def launched(compute):
    """The kernels that a computation launches, with their arguments."""
    every = []
    with ExitStack() as stack:
        for module, names in KERNELS.items():
            stands = {name: Launches(getattr(module, name)) for name in names}
            stack.enter_context(patch.multiple(module, **stands))
            every += stands.values()
        compute()
    return [(stand.kernel, arguments) for stand in every for arguments in stand.arguments]


def compiled(kernel, arguments, capability=90):
    """Compile a kernel for NVIDIA GPUs of a compute capability, as a launch specialises it."""
    options = {name: arguments[name] for name in OPTIONS if name in arguments}
    signature, constants, attributes = {}, {}, {}
    for place, (name, parameter) in enumerate(inspect.signature(kernel.fn).parameters.items()):
        fixed = "constexpr" in str(parameter.annotation)
        signature[name] = typed(arguments[name], (place,), fixed, constants, attributes)
    source = ASTSource(kernel, signature, constants, attributes)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def typed(value, path, fixed, constants, attributes):
    """The type of an argument; constants and what divides by 16 are noted by their path."""
    if isinstance(value, tuple):
        parts = [
            typed(part, (*path, i), fixed, constants, attributes) for i, part in enumerate(value)
        ]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if fixed or value is None or (isinstance(value, int) and value == 1):
        constants[path] = value
        return "constexpr"
    if isinstance(value, torch.Tensor):
        attributes[path] = [["tt.divisibility", 16]]
        return TYPES[value.dtype]
    if isinstance(value, int):
        if value % 16 == 0:
            attributes[path] = [["tt.divisibility", 16]]
        return "i32" if abs(value) < 2**31 else "i64"
    return "fp32"


def problem_of(dtype=torch.bfloat16, dim=128, **options):
    query = torch.zeros(B, H, L, dim, dtype=dtype)
    return regard.Pattern(query, query, **{"mask": regard.causal()} | options).problem


def report(name, readouts, *, known=True, capability=90, **options):
    """Compile what takes some readouts, and describe the kernels that result."""
    problem = problem_of(**options)
    sizes = Sizes(problem.leading, L, L, torch.float32, problem.query.device)
    orders = [readout.kernel_spec(sizes) for readout in readouts]
    logsumexp = torch.zeros(B * H, L) if known else None
    return described(
        name, lambda: _read.read_all(problem, orders, logsumexp, None), capability=capability
    )


def report_divergence(name, kind, *, others_dim=128, capability=90, **options):
    """Compile the comparison of two patterns, and describe the kernel."""
    pair = problem_of(**options), problem_of(**options | {"dim": others_dim})
    known = torch.zeros(B * H, L)
    return described(
        name, lambda: _compare.compare_all(*pair, (known, known), kind), capability=capability
    )


def described(name, compute, *, capability):
    """Compile what a computation launches, and describe the kernels that result."""
    with (
        patch.object(_inputs, "is_roomy", lambda _: capability == 90),
        patch.object(_compare, "is_roomy", lambda _: capability == 90),
    ):
        launches = launched(compute)
    for kernel, arguments in launches:
        actual = compiled(kernel, arguments, capability)
        code = actual.asm["ttgir"]
        yield {
            "name": name,
            "room": (227 if capability == 90 else 99) * 1024,
            "kernel": kernel.fn.__name__,
            "shared": actual.metadata.shared,
            "loops": LOOPS.get(kernel.fn.__name__, 3),
            "products": re.findall(r"ttng\.(warp_group_dot) ", code),
            "copies": code.count("async_copy_global_to_local"),
        }


def main():
    rows = torch.zeros(B * H, 3, L)
    options = {
        "softcap": 30.0,
        "bias": torch.zeros(L, L, dtype=torch.bfloat16),
        "alibi": torch.ones(H),
        "sink": torch.zeros(H),
        "mask": regard.causal()
        & regard.dense(torch.ones(L, L, dtype=torch.bool))
        & regard.masks.hide(slice(9, 99), queries=slice(200, None)),
    }
    actual = [
        *report("plain", [LogSumExp()], known=False),
        *described(
            "refined", lambda: _read.refine_all(problem_of(), rows[:, 0], 64.0), capability=90
        ),
        *report("plain", [Received()]),
        *report("all readouts", TOGETHER),
        *report("offsets", [Offsets(64)]),
        *report("products", [LeftProduct(rows), Weights(torch.tensor([1, 4, 5]))]),
        *report("options", [Entropy(), LogSumExp()], known=False, **options),
        *report("wide", [Received(), Entropy()], dim=256),
        *report("on a smaller GPU", [LeftProduct(rows), Received()], capability=89),
        *report("wide, on a smaller GPU", [Received(), Entropy()], dim=256, capability=89),
        *report(
            "wide float32, on a smaller GPU",
            [LeftProduct(rows), Received()],
            dtype=torch.float32,
            dim=256,
            capability=89,
        ),
        *report("wide float32", [Received(), Entropy()], dtype=torch.float32, dim=256),
        *report("spans and blocks", [Spans([0, 1, 1, 2]), Blocks(64, 64, "max")]),
        *report_divergence("divergence", "js"),
        *report_divergence("divergence with a sink", "kl", sink=torch.zeros(H)),
        *report_divergence("wide divergence", "tv", dim=256, others_dim=256),
        *report_divergence("divergence on a smaller GPU", "js", capability=89),
        *report_divergence(
            "wide float32 divergence, on a smaller GPU",
            "js",
            dtype=torch.float32,
            dim=256,
            others_dim=256,
            capability=89,
        ),
    ]
    sys.stdout.write(json.dumps(actual))


if __name__ == "__main__":
    main()
