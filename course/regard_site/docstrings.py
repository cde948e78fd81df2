"""The public names of the package: their signatures and docstrings, read without importing it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import griffe

from regard_site.sources import ROOT

__all__ = ["Entry", "Room", "rooms"]

_INTERNAL = {"attention", "backends", "cli", "errors", "inputs", "intercept", "pattern", "sdpa"}
"""Modules whose names are not for users, or stand in `regard` or another room already."""
_INSIDE = (
    "gpt.stories",
    *(f"integrations.{name}" for name in ("inspect_ai", "lightning", "ray", "tensorboard")),
    *(f"integrations.{name}" for name in ("trackio", "transformer_lens", "transformers")),
    *(f"integrations.{name}" for name in ("wandb", "xarray")),
    "lens.circuits",
)
"""Public rooms within rooms."""
_PROTOCOL = "regard.pattern.readout"
"""What every readout implements: for whoever writes one, not for whoever takes one."""


@dataclass(frozen=True)
class Entry:
    """A public name.

    Args:
        path: as users write it, such as ``regard.Pattern.topk``.
        kind: class, function, property or value.
        signature: as in the source, without the name; None for what is not called.
        sections: its docstring, cut by `griffe`.
        members: the public methods and fields of a class.
        same_as: the path under which it is described, where it has several.
    """

    path: str
    kind: str
    signature: str | None
    sections: Sequence[griffe.DocstringSection]
    members: Sequence[Entry] = ()
    same_as: str | None = None


@dataclass(frozen=True)
class Room:
    """A module that users import from."""

    path: str
    sections: Sequence[griffe.DocstringSection]
    entries: Sequence[Entry]


@cache
def rooms() -> list[Room]:
    """Every public module, `regard` first, with its public names in the order of the alphabet."""
    for name in ("griffe", "_griffe"):  # it warns of parameters that share a line
        logging.getLogger(name).setLevel(logging.ERROR)
    package = griffe.load("regard", search_paths=[str(ROOT)], docstring_parser="google")
    assert isinstance(package, griffe.Module), "regard is a package"
    described: dict[str, str] = {}
    return [_room(package, name, described) for name in ("", *_public(package))]


def _public(package: griffe.Module) -> list[str]:
    names = [
        name
        for name, module in package.modules.items()
        if not name.startswith("_") and name not in _INTERNAL and module.exports
    ]
    return sorted([*names, *_INSIDE])


def _room(package: griffe.Module, name: str, described: dict[str, str]) -> Room:
    module = package[name] if name else package
    path = f"regard.{name}" if name else "regard"
    names = [str(one) for one in module.exports or ()]
    entries = []
    for one in sorted(names, key=lambda text: (text.lower(), text)):
        thing = _find(package, module, one)
        thing = thing.final_target if isinstance(thing, griffe.Alias) else thing
        if thing.is_module:
            continue
        same = described.setdefault(thing.path, f"{path}.{one}")
        known = same if same != f"{path}.{one}" else None
        entries.append(_entry(thing, f"{path}.{one}", same_as=known))
    return Room(path, _parsed(module), entries)


def _find(package: griffe.Module, module: griffe.Module, name: str) -> griffe.Object | griffe.Alias:
    """What a module exports, traced through imports; griffe takes a file of that name instead."""
    target = module.imports.get(name, "")
    folder, _, last = target.removeprefix("regard.").rpartition(".")
    if not folder or target == f"{module.path}.{name}":
        return module.members[name]
    return _find(package, package[folder], last)


def _entry(thing: griffe.Object, path: str, *, same_as: str | None = None) -> Entry:
    members = list(_members(thing, path)) if isinstance(thing, griffe.Class) else []
    return Entry(path, _kind(thing), _signature(thing), _parsed(thing), members, same_as)


def _kind(thing: griffe.Object) -> str:
    if isinstance(thing, griffe.Attribute):
        return "property" if "property" in thing.labels else "value"
    return thing.kind.value


def _members(thing: griffe.Class, path: str) -> Iterator[Entry]:
    """Public methods and fields that have a docstring, with those of the package's own bases."""
    protocols = (base for base in thing.mro() if base.module.path == _PROTOCOL)
    hidden = {name for base in protocols for name in base.members}
    for name, member in sorted(thing.all_members.items()):
        target = member.final_target if isinstance(member, griffe.Alias) else member
        if name.startswith("_") or name in hidden or not target.docstring:
            continue
        is_shown = isinstance(target, griffe.Function | griffe.Attribute)
        if is_shown and target.path.startswith("regard."):
            yield _entry(target, f"{path}.{name}")


def _parsed(thing: griffe.Object | griffe.Alias) -> Sequence[griffe.DocstringSection]:
    return thing.docstring.parse("google", warnings=False) if thing.docstring else []


def _signature(thing: griffe.Object) -> str | None:
    """Parameters and result; on one line where they fit, else a parameter a line."""
    if isinstance(thing, griffe.Attribute):
        return f": {thing.annotation}" if thing.annotation else None
    if not isinstance(thing, griffe.Class | griffe.Function):
        return None
    parts = list(_parameters(thing.parameters))
    result = ""
    if isinstance(thing, griffe.Function) and thing.returns is not None:
        result = f" -> {' '.join(str(thing.returns).split())}"
    line = f"({', '.join(parts)}){result}"
    if len(thing.name) + len(line) <= 78:
        return line
    return "(\n" + "".join(f"    {part},\n" for part in parts) + f"){result}"


def _parameters(parameters: griffe.Parameters) -> Iterator[str]:
    was_keyword_only = False
    for one in parameters:
        if one.name in {"self", "cls"}:
            continue
        kind = one.kind
        assert kind is not None, "a parameter of a signature has a kind"
        if kind is griffe.ParameterKind.keyword_only and not was_keyword_only:
            yield "*"
        was_keyword_only = was_keyword_only or kind in {
            griffe.ParameterKind.keyword_only,
            griffe.ParameterKind.var_positional,
        }
        stars = {
            griffe.ParameterKind.var_positional: "*",
            griffe.ParameterKind.var_keyword: "**",
        }.get(kind, "")
        text = f"{stars}{one.name}"
        if one.annotation is not None:
            text += f": {' '.join(str(one.annotation).split())}"
        if one.default is not None and not stars:
            text += f" = {one.default}" if one.annotation is not None else f"={one.default}"
        yield text
