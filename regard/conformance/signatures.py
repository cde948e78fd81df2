"""How a function is called: the lines that ask it for a case, from the names of its parameters.

Four families differ in more than names:

| family | axes | causal | other masks |
|---|---|---|---|
| torch | (B, H, L, D) | top left: query 0 sees key 0 alone | tensors |
| flash | (B, L, H, D) | bottom right: the last query sees all | window_size |
| flex | (B, H, L, D) | as the mask says | functions of indices |
| regard | (B, H, L, D) | bottom right | `regard.Mask` |

Inside a family any parameter may be missing: what it is for is *not offered*, which is no failure.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from regard.conformance.cases import Case

__all__ = ["FAMILIES", "Call", "NotOfferedError", "Signature", "signature_of"]

FAMILIES = ("torch", "flash", "flex", "regard")

# What stands for a meaning in the families torch and flash: the first name that the function has.
_NAMES = {
    "causal": ("is_causal", "causal"),
    "mask": ("attn_mask", "mask"),
    "bias": ("attn_bias", "bias", "attn_mask"),
    "window": ("window_size",),
    "scale": ("scale", "softmax_scale", "sm_scale"),
    "softcap": ("softcap",),
    "sink": ("sinks", "sink", "s_aux", "learnable_sink"),
    "dropout": ("dropout_p", "dropout"),
    "grouped": ("enable_gqa",),
}
# The parameters of a family, for functions that do not tell theirs.
_USUAL = {
    "torch": "attn_mask dropout_p is_causal scale enable_gqa",
    "flash": "dropout_p softmax_scale causal window_size softcap",
    "flex": "score_mod block_mask scale enable_gqa",
    "regard": "mask scale softcap bias sink dropout",
}
_IMPORT = "from torch.nn.attention.flex_attention import create_block_mask"


class NotOfferedError(Exception):
    """The function has no parameter for what a case asks."""


@dataclass(frozen=True)
class Call:
    """The lines that call a function.

    Args:
        before: lines that make its arguments.
        inputs: the names of query, key and value among them.
        expression: the call, whose result has the axes of ``q``.
    """

    before: Sequence[str]
    inputs: tuple[str, str, str]
    expression: str


@dataclass(frozen=True)
class Signature:
    """A family, and which of its parameters a function has.

    Args:
        family: one of `FAMILIES`.
        parameters: names.
        pair: whether the function returns more than the context, which comes first then.
    """

    family: str
    parameters: Collection[str]
    pair: bool = False

    @property
    def by_last_query(self) -> bool:
        """Whether causal means that the last query has the position of the last key."""
        return self.family in {"flash", "regard"}

    def call(self, case: Case, dropout: float = 0.0) -> Call:
        """Write the call of a case.

        Raises:
            NotOfferedError: with the reason, where a parameter is missing.
        """
        if case.batch == 0 and self.family in {"flash", "flex"}:
            raise NotOfferedError("four axes are asked for")
        make = {"flex": self._flex, "regard": self._regard}.get(self.family, self._plain)
        before, keywords = make(case, dropout)
        names = ("q", "k", "v")
        if self.family == "flash":
            names = ("Q", "K", "V")
            packed = "" if case.area == "strides" else ".contiguous()"
            line = f"Q, K, V = (t.transpose(1, 2){packed} for t in (q, k, v))  # (B, L, H, D)"
            before = [*before, line]
        first = "[0]" if self.pair else ""
        back = ".transpose(1, 2)" if self.family == "flash" else ""
        return Call(before, names, f"attend({', '.join([*names, *keywords])}){first}{back}")

    def _plain(self, case: Case, dropout: float) -> tuple[list[str], list[str]]:
        asked = {
            "causal": case.ask == "causal" and "True",
            "mask": case.ask == "mask" and "see",
            "bias": case.ask == "bias" and "bias",
            "window": case.ask == "window" and str(case.window),
            "scale": case.scale is not None and str(case.scale),
            "softcap": case.softcap is not None and str(case.softcap),
            "sink": case.sink and "sink",
            "dropout": dropout > 0 and str(dropout),
            "grouped": self.family == "torch" and case.grouped > 1 and "True",
        }
        keywords = [f"{self._name(what)}={value}" for what, value in asked.items() if value]
        return [], keywords

    def _name(self, meaning: str) -> str:
        for name in _NAMES[meaning]:
            if name in self.parameters:
                return name
        raise NotOfferedError(f"no parameter {' or '.join(_NAMES[meaning])}")

    def _flex(self, case: Case, dropout: float) -> tuple[list[str], list[str]]:
        if dropout or case.sink:
            raise NotOfferedError("no parameter for dropout" if dropout else "none for sinks")
        before: list[str] = []
        score, keywords = "s", []
        if case.softcap is not None:
            score = f"{case.softcap} * torch.tanh({score} / {case.softcap})"
        if case.ask == "bias":
            before.append(f"full = bias.expand({case.batch}, {case.heads}, *bias.shape[-2:])")
            score += " + full[b, h, i, j]"
        if score != "s":
            self._require("score_mod")
            keywords.append(f"score_mod=lambda s, b, h, i, j: {score}")
        if case.ask in {"causal", "mask", "window"}:
            self._require("block_mask")
            sizes = f"{case.batch}, {case.heads}, {case.queries}, {case.keys}"
            seen = "lambda b, h, i, j: seen[b, h, i, j]"
            before += [_IMPORT, f"seen = see.expand({sizes})"]
            before.append(f"blocks = create_block_mask({seen}, {sizes}, device=q.device)")
            keywords.append("block_mask=blocks")
        if case.scale is not None:
            self._require("scale")
            keywords.append(f"scale={case.scale}")
        if case.grouped > 1:
            self._require("enable_gqa")
            keywords.append("enable_gqa=True")
        return before, keywords

    def _regard(self, case: Case, dropout: float) -> tuple[list[str], list[str]]:
        if case.ask == "window":
            assert case.window is not None, "a case that asks for a window has one"
            back, ahead = case.window
            mask = f"regard.window({back + 1}, ahead={ahead})"
        else:
            mask = {"causal": "regard.causal()", "mask": "regard.dense(see)"}.get(case.ask, "")
        asked = {
            "mask": mask,
            "bias": case.ask == "bias" and "bias",
            "scale": case.scale is not None and str(case.scale),
            "softcap": case.softcap is not None and str(case.softcap),
            "sink": case.sink and "sink",
            "dropout": dropout > 0 and str(dropout),
        }
        keywords = [f"{name}={value}" for name, value in asked.items() if value]
        return ["import regard"] if mask else [], keywords

    def _require(self, name: str) -> None:
        if name not in self.parameters:
            raise NotOfferedError(f"no parameter {name}")


def signature_of(function: Callable[..., Any], family: str | None = None) -> Signature:
    """Find how a function is called.

    Args:
        function: it tells its parameters to `inspect.signature`, or in the first line of its
            docstring, as torch's built-in functions do.
        family: one of `FAMILIES`; None to find it by the names. With it, a function that tells no
            names, or takes any by ``**``, has the usual ones of that family.

    Raises:
        ValueError: if the names are of no family, and none is given.
    """
    names, any_name = _parameters(function)
    found = family or _family(names, any_name=any_name)
    if found is None:
        shown = ", ".join(names) or "none that can be read"
        raise ValueError(
            f"the parameters ({shown}) are of no known family of attention functions; name the one "
            f"that it is called like with --signature: {', '.join(FAMILIES)}"
        )
    known = set(names)
    if found == "regard" or (family and (any_name or not names)):
        known |= set(_USUAL[found].split())
    return Signature(found, frozenset(known))


def _parameters(function: Callable[..., Any]) -> tuple[list[str], bool]:
    """Read the names of parameters, and whether it takes any others by ``**``."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        line = re.match(r"\s*\w+\(([^)]*)\)", function.__doc__ or "")
        parts = (line[1] if line else "").split(",")
        return [part.partition("=")[0].strip() for part in parts if part.strip(" */")], False
    return [p.name for p in parameters], any(p.kind is p.VAR_KEYWORD for p in parameters)


def _family(names: Sequence[str], *, any_name: bool) -> str | None:
    marks = {
        "flex": {"score_mod", "block_mask"},
        "flash": {"causal", "softmax_scale"},
        "torch": {"attn_mask", "is_causal", "enable_gqa"},
    }
    for family, some in marks.items():
        if some.intersection(names):
            return family
    if any_name and {"dropout", "generator"} <= set(names):
        return "regard"
    return "torch" if [name[:1].lower() for name in names][:3] == ["q", "k", "v"] else None
