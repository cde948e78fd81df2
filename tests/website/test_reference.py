"""The reference describes every public name, as Python sees it."""

import inspect
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules

from regard_site.docstrings import rooms
from regard_site.reference import address_of

import regard
from regard import integrations as integrations_of_regard

# Rooms whose library is missing where the tests run can't be imported.
MISSING = [name for name in ("inspect_ai", "lightning") if find_spec(name) is None]
ROOMS = [room for room in rooms() if room.path.rpartition(".")[2] not in MISSING]
# Modules that no user imports from, and one that is run.
INTERNAL = {"attention", "backends", "cli", "errors", "inputs", "intercept", "pattern", "sdpa"}


def test_every_public_module_has_a_page():
    names = {found.name for found in iter_modules(regard.__path__)} - INTERNAL
    public = {f"regard.{name}" for name in names if not name.startswith("_")}
    named = {path for path in public if hasattr(import_module(path), "__all__")}
    integrations = {found.name for found in iter_modules(integrations_of_regard.__path__)}
    inside = {"regard.gpt.stories", "regard.lens.circuits"}
    inside |= {f"regard.integrations.{name}" for name in integrations}
    assert {room.path for room in rooms()} == named | inside | {"regard"}


def test_every_public_name_is_described_once():
    for room in ROOMS:
        module = import_module(room.path)
        names = [entry.path.rpartition(".")[2] for entry in room.entries]
        modules = {name for name in module.__all__ if inspect.ismodule(getattr(module, name))}
        assert sorted(names) == sorted({*module.__all__} - modules), room.path


def test_parameters_are_those_that_python_sees():
    compared = 0
    for entry in (entry for room in ROOMS for entry in room.entries):
        module, _, name = entry.path.rpartition(".")
        thing = getattr(import_module(module), name)
        if entry.kind != "function" or entry.signature is None:
            continue
        parameters = list(inspect.signature(thing).parameters)
        assert all(name in entry.signature for name in parameters), entry.path
        compared += 1
    assert compared > 40


def test_a_name_leads_to_its_description_under_every_path():
    assert address_of("regard.causal") == "reference/regard.html#regard.causal"
    assert address_of("regard.masks.causal()") == address_of("regard.causal")
    assert address_of("regard.Pattern.topk") == "reference/regard.html#regard.Pattern.topk"
    assert address_of("torch.softmax") is None


def test_docstrings_are_cut_into_their_parts(site):
    page = (site / "reference/regard.html").read_text("utf-8")
    start = page.index('id="regard.attention"')
    entry = page[start : page.index('id="regard.attention_with_pattern"')]
    for part in ("Parameters", "Returns", "Raises", "Example"):
        assert f'<p class="label">{part}</p>' in entry
    assert '<pre class="session">' in entry
    assert "<code>softcap</code>" in entry
