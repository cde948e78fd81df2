"""Compiles the kernels, as a problem would launch them, for a GPU that need not be there."""

import inspect
import json
import re
import sys
from unittest.mock import patch

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import regard
from regard.backends.gpu.triton import _inputs, _one_pass, _partial_sums, _read
from regard.pattern.internal_readouts import Collected, LogSumExp, Weights
from regard.pattern.readout import Sizes
from regard.pattern.readouts import Distance, Entropy, Image, Mass, Max, Offsets, Received, TopK

KERNELS = {
    _read: ("read_columns", "read_diagonals", "read_logsumexp", "read_slices"),
    _one_pass: ("read_rows",),
    _partial_sums: ("fold",),
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
B, H, L = 1, 4, 4096
TOGETHER = (TopK(8), Entropy(), Received(), Distance(), Max(), Mass([1, 5]), Image(512, 512))


class Launches:
    """Stands for a kernel; keeps what it is launched with and computes nothing."""

    def __init__(self, kernel):
        self.kernel = kernel
        self.arguments = []

    def __getitem__(self, grid):
        return lambda **arguments: self.arguments.append(arguments)


def launched(problem, orders, logsumexp=None):
    """The kernels that a reading launches, with their arguments."""
    stands = {
        module: {name: Launches(getattr(module, name)) for name in names}
        for module, names in KERNELS.items()
    }
    with (
        patch.multiple(_read, **stands[_read]),
        patch.multiple(_one_pass, **stands[_one_pass]),
        patch.multiple(_partial_sums, **stands[_partial_sums]),
    ):
        _read.read_all(problem, orders, logsumexp, None)
    every = [stand for some in stands.values() for stand in some.values()]
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


def report(name, readouts, *, dtype=torch.bfloat16, dim=128, known=True, capability=90, **options):
    """Compile what takes some readouts, and describe the kernels that result."""
    query = torch.zeros(B, H, L, dim, dtype=dtype)
    options = {"mask": regard.causal()} | options
    problem = regard.Pattern(query, query, **options).problem
    sizes = Sizes(problem.leading, L, L, torch.float32, query.device)
    orders = [readout.kernel_spec(sizes) for readout in readouts]
    logsumexp = torch.zeros(B * H, L) if known else None
    with patch.object(_inputs, "is_roomy", lambda _: capability == 90):
        launches = launched(problem, orders, logsumexp)
    for kernel, arguments in launches:
        actual = compiled(kernel, arguments, capability)
        code = actual.asm["ttgir"]
        yield {
            "name": name,
            "room": (227 if capability == 90 else 99) * 1024,
            "kernel": kernel.fn.__name__,
            "shared": actual.metadata.shared,
            "loops": 0 if kernel.fn.__name__ == "fold" else 3,
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
        & regard.hide(slice(9, 99), queries=slice(200, None)),
    }
    actual = [
        *report("plain", [LogSumExp()], known=False),
        *report("plain", [Received()]),
        *report("all readouts", TOGETHER),
        *report("offsets", [Offsets(64)]),
        *report("products", [Collected(rows), Weights(torch.tensor([1, 4, 5]))]),
        *report("options", [Entropy(), LogSumExp()], known=False, **options),
        *report("wide", [Received(), Entropy()], dim=256),
        *report("on a smaller GPU", [Collected(rows), Received()], capability=89),
        *report("wide, on a smaller GPU", [Received(), Entropy()], dim=256, capability=89),
        *report(
            "wide float32, on a smaller GPU",
            [Collected(rows), Received()],
            dtype=torch.float32,
            dim=256,
            capability=89,
        ),
        *report("wide float32", [Received(), Entropy()], dtype=torch.float32, dim=256),
    ]
    sys.stdout.write(json.dumps(actual))


if __name__ == "__main__":
    main()
