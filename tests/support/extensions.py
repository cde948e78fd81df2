"""Extensions for devices, as if others were installed."""

import contextlib
import sys
from importlib.metadata import EntryPoint, EntryPoints
from types import ModuleType

import pytest

from regard.backends import extensions


@contextlib.contextmanager
def installed(**found):
    """Have these extensions installed, by the type of their device, and no other.

    Yields:
        The names of those imported so far.
    """
    imported = []

    class Module(ModuleType):
        """A module that notes who asks for what is in it."""

        def __getattr__(self, name):
            if name not in found:
                raise AttributeError(name)
            imported.append(name)
            return found[name]

    points = EntryPoints(EntryPoint(kind, f"its_module:{kind}", extensions.GROUP) for kind in found)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "its_module", Module("its_module"))
        patch.setattr(extensions, "entry_points", points.select)
        patch.setattr(extensions, "_loaded", {})
        yield imported


def without_extensions():
    """Have none installed."""
    return installed()
