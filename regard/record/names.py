"""The path of the module that attends, and whether to its own sequence or to another one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from torch import nn

from regard._modules import unwrapped, unwrapped_name

Kind = Literal["self", "cross", "encoder"]
KINDS: tuple[Kind, ...] = ("self", "cross", "encoder")

# Words for the attention of a decoder to an encoder's output.
_CROSS = ("cross", "encoder_attn", "encdec", "enc_dec")


def kinds_of(kinds: Iterable[Kind]) -> tuple[Kind, ...]:
    """The kinds that there are, in their order."""
    present = set(kinds)
    return tuple(kind for kind in KINDS if kind in present)


def choose_kind(kind: Kind | None, kinds: Sequence[Kind]) -> Kind:
    """Choose a kind; None is self-attention, or what there is if there is none.

    Raises:
        ValueError: for a kind that was not recorded.
    """
    if kind is None:
        return kinds[0] if kinds else "self"
    if kind not in kinds:
        raise ValueError(
            f"kind={kind!r} was not recorded; there is {', '.join(map(repr, kinds)) or 'none'}"
        )
    return kind


class Names:
    """Paths of modules in the outermost modules that hold them."""

    def __init__(self, model: nn.Module | None) -> None:
        self._paths: dict[int, dict[int, str]] = {}
        self._with_decoder: dict[int, set[str]] = {}
        """Of each root, the paths with a decoder right below."""
        self._roots: list[nn.Module] = []
        if model is not None:
            self.add(model)

    def add(self, root: nn.Module) -> None:
        """Add the paths below a module that was called."""
        if id(root) not in self._paths:
            self._roots.append(root)  # held, so that its id stays its own
            modules = unwrapped(root).named_modules()
            paths = {id(module): unwrapped_name(path) for path, module in modules}
            self._paths[id(root)] = paths
            ends = (path.rpartition(".") for path in paths.values())
            self._with_decoder[id(root)] = {
                above for above, _, name in ends if _is(name, "decoder")
            }

    def path(self, module: nn.Module | None) -> str:
        """The longest path that is known of a module; its class where there is none."""
        if module is None:
            return ""
        paths = [paths[id(module)] for paths in self._paths.values() if id(module) in paths]
        return max(paths, key=len, default="") or type(module).__name__

    def kind(self, modules: Sequence[nn.Module]) -> Kind:
        """Tell what the innermost of these modules attends to."""
        if not modules:
            return "self"
        module, path = modules[-1], self.path(modules[-1])
        parent = modules[-2] if len(modules) > 1 else None
        named = any(word in path.lower() for word in _CROSS)
        if getattr(module, "is_cross_attention", False) is True or named:
            return "cross"
        if isinstance(parent, nn.TransformerDecoderLayer) and module is parent.multihead_attn:
            return "cross"
        return "encoder" if self._beside_decoder(module) else "self"

    def _beside_decoder(self, module: nn.Module) -> bool:
        """Tell whether a module lies in an encoder that has a decoder beside it."""
        for id_of_root, paths in self._paths.items():
            parts = paths.get(id(module), "").split(".")
            for place, part in enumerate(parts):
                above = ".".join(parts[:place])
                if _is(part, "encoder") and above in self._with_decoder[id_of_root]:
                    return True
        return False


def _is(name: str, part: str) -> bool:
    """Tell whether a module is named for a part of a model: ``encoder``, or ``text_encoder``."""
    return name == part or name.endswith("_" + part)
