"""Packages whose names are imported on first access."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any


def make_lazy(package: str, homes: Mapping[str, str], rooms: Collection[str] = ()) -> None:
    """Make a package import its names on first access (PEP 562).

    Args:
        package: full name of the package, which is being imported.
        homes: for each name, the module of the package that defines it.
        rooms: modules of the package that are public names too.
    """

    class Face(ModuleType):
        def __getattr__(self, name: str) -> Any:
            if name in rooms:
                return import_module(f"{package}.{name}")
            if name not in homes:
                raise AttributeError(f"module {package!r} has no attribute {name!r}")
            value = getattr(import_module(f"{package}.{homes[name]}"), name)
            setattr(self, name, value)
            return value

        def __dir__(self) -> list[str]:
            return sorted([*homes, *rooms])

        def __setattr__(self, name: str, value: object) -> None:
            # Importing a module sets it as an attribute of its package, which would hide a
            # function of the same name.
            if name not in homes or not isinstance(value, ModuleType):
                super().__setattr__(name, value)

    sys.modules[package].__class__ = Face
