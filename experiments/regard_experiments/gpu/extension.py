"""What `regard` finds for CUDA tensors: an extension as `regard.backends.extensions` has it."""

from __future__ import annotations

from regard._tensors import is_nvidia
from regard.backends.extensions import Backend
from regard.inputs import Problem
from regard_experiments.gpu import flex, hardware, self_check, triton
from regard_experiments.gpu.fused import cudnn, efficient, flash
from regard_experiments.gpu.rules import is_plain

backends: dict[str, Backend] = {
    "flash": flash,
    "cudnn": cudnn,
    "efficient": efficient,
    "flex": flex,
}
reader = triton
# Fewer queries than fill a tile of cuDNN's. It builds a plan for each shape, which a cache that
# grows would ask for at each step, while FlashAttention splits the keys of few queries up.
_FEW = 64


def preferred(problem: Problem) -> tuple[str, ...]:
    """Name the backends to try for a problem, the fastest first."""
    device = problem.query.device
    if not is_nvidia(device):
        return ("torch_sdpa", "eager")
    # cuDNN's kernels are written for the tensor cores of these GPUs, FlashAttention 2 for those
    # before. Who activates a later FlashAttention wants that one.
    hopper = hardware.capability(device)[0] in {9, 10}
    first_cudnn = hopper and flash.activated() is None and problem.queries >= _FEW
    whole = ("cudnn", "flash") if first_cudnn else ("flash", "cudnn")
    # With intervals FlexAttention leaves out what nobody sees; else it would only have to be
    # compiled, and where a dense mask or bias exists there is nothing to write down.
    rows = problem.rows
    written = is_plain(rows) or not rows.is_interval
    others = ("efficient", "flex") if written else ("flex", "efficient")
    return (*whole, *others, "eager")


def failure(name: str, problem: Problem) -> str | None:
    """Say why a backend fails its self-check on the device of a problem, or None."""
    return self_check.attention_failure(name, backends[name].run, problem)


def version(name: str) -> str | None:
    """Name the FlashAttention in use; the other backends have no versions."""
    return (flash.activated() or "FA2") if name == "flash" else None


def facts() -> list[tuple[str, str]]:
    """Describe the kernels of the GPU, for `regard doctor`."""
    missing = hardware.why_no_triton()
    by = "Triton" if missing is None else f"torch, in chunks; not by Triton: {missing}"
    kernels = "experimental: checked on first use, and not run on a GPU by the project's tests"
    return [("GPU kernels", kernels), ("GPU readouts", f"by {by}")]
