"""Decisions for a machine on bfloat16 and torch.compile: pure functions, with a reason."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from importlib.util import find_spec

import torch

from regard.gpt.training.config import Compile, Precision

# Measured with AMX: in bfloat16 an update takes 1.2 times as long as in float32 at a width of 32,
# and is 1.2 to 1.8 times as fast at 128.
_WIDE = 128

_COMPILERS = {
    "cpu": ("C++ compiler", "a CPU", "install one, such as g++"),
    "cuda": ("Triton", "a GPU", "pip install triton"),
}
"""By device: the compiler that torch.compile needs, the device's name, and the cure."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The properties of a machine on which the decisions depend.

    Attributes:
        device: ``"cpu"``, or an accelerator's type.
        bfloat16: the hardware unit that multiplies bfloat16; None without one.
        compiler: the compiler of torch.compile: C++ on a CPU, Triton on CUDA; None if missing.
    """

    device: str
    bfloat16: str | None
    compiler: str | None


@dataclass(frozen=True, kw_only=True)
class Decision:
    """A setting, on or off, and the reason."""

    on: bool
    reason: str


def this_machine(device: torch.device) -> Machine:
    """Return the properties of this machine."""
    compilers = (name for name in ("g++", "clang++", "c++") if shutil.which(name))
    compiler = next(compilers, None)
    if device.type == "cuda":
        compiler = None if find_spec("triton") is None else "Triton"
    return Machine(device=device.type, bfloat16=_bfloat16(device), compiler=compiler)


def bfloat16(precision: Precision, machine: Machine, *, dim: int) -> Decision:
    """Decide whether matrix products are computed in bfloat16, under autocast.

    Args:
        precision: the recipe's precision.
        machine: the machine.
        dim: E, the model dimension.

    >>> xeon = Machine(device="cpu", bfloat16="AMX", compiler=None)
    >>> bfloat16("auto", xeon, dim=64)
    Decision(on=False, reason='a width of 64 is below 128, where bfloat16 begins to gain')
    >>> bfloat16("auto", xeon, dim=768).reason
    'AMX multiplies bfloat16'
    """
    if precision != "auto":
        return Decision(on=precision == "bfloat16", reason="set by precision")
    if machine.bfloat16 is None:
        return Decision(on=False, reason=f"this {machine.device} does not multiply bfloat16 itself")
    if dim < _WIDE:
        reason = f"a width of {dim} is below {_WIDE}, where bfloat16 begins to gain"
        return Decision(on=False, reason=reason)
    return Decision(on=True, reason=f"{machine.bfloat16} multiplies bfloat16")


def compiling(setting: Compile, machine: Machine) -> Decision:
    """Decide whether to use torch.compile.

    Measured on two cores of an EPYC (Zen 5), in bfloat16: the compiled model makes an update 0.93
    times as fast at a width of 128 and 1.1 times at 384. After how many updates this outweighs the
    time of compilation was not measured, so it is off by default.

    Args:
        setting: the recipe's `compile`.
        machine: the machine.

    Raises:
        ValueError: if it is set to on and the compiler is missing.

    >>> compiling("auto", Machine(device="cpu", bfloat16=None, compiler="g++"))
    Decision(on=False, reason='on a CPU it gains little; set it for a long training run')
    """
    needed = _COMPILERS.get(machine.device)
    if setting == "on" and needed is not None and machine.compiler is None:
        what, place, cure = needed
        raise ValueError(
            f"TrainConfig.compile is 'on' and there is no {what}, which torch.compile needs on "
            f"{place}: {cure}, or choose compile='off'"
        )
    if setting != "auto":
        return Decision(on=setting == "on", reason="set by compile")
    if needed is not None and machine.compiler is None:
        return Decision(on=False, reason=f"there is no {needed[0]}")
    if machine.device == "cpu":
        return Decision(on=False, reason="on a CPU it gains little; set it for a long training run")
    reason = f"whether it gains on {machine.device} was not measured; set it to try"
    return Decision(on=False, reason=reason)


def _bfloat16(device: torch.device) -> str | None:
    if device.type == "cuda":
        return "the GPU" if torch.cuda.is_bf16_supported(including_emulation=False) else None
    if device.type != "cpu":
        return None
    if torch.cpu._is_amx_tile_supported():  # noqa: SLF001 - torch has no public function
        return "AMX"
    if torch.cpu._is_avx512_bf16_supported():  # noqa: SLF001 - likewise
        return "AVX-512"
    arm = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    # On x86 it is also true if bfloat16 is only emulated in float32.
    is_arm = torch.backends.cpu.get_cpu_capability() in {"SVE256", "SVE", "NEON"}
    return "NEON" if is_arm and arm is not None and arm() else None
