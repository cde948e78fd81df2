"""What all tests share: shapes that are checked, and the profile of hypothesis.

The core's annotations name shapes and dtypes, such as ``Float[Tensor, "*b L D"]``. At run time they
are plain strings, so that users need no jaxtyping. In tests they are promises to be kept: before
anything else imports `regard`, its core modules are imported with ``TYPE_CHECKING`` true, so that
the names in the annotations exist, and under jaxtyping's hook, which checks calls against
them (see tests/support/typecheck.py). This file lies at the root since the doctests in regard/ need
it too, and pytest reads it before it collects either.
"""

import atexit
import gc
import importlib
import os
import sys
import typing
from importlib.util import find_spec
from pathlib import Path

import hypothesis
import jaxtyping
import pandas as pd  # noqa: F401 - annotations name it; it must not see TYPE_CHECKING
import rich.console  # noqa: F401 - likewise
import torch

gc.disable()  # what is imported and collected stays; looking through it again and again is in vain

collect_ignore = []
if find_spec("kvpress") is None:  # it has an environment of its own: make kvpress
    collect_ignore += ["experiments/regard_experiments/kv/kvpress.py"]
# Integrations whose library is not there: those that import it, and one whose example needs it.
for library in ("inspect_ai", "lightning", "xarray"):
    if find_spec(library) is None:
        collect_ignore += [f"regard/integrations/{library}.py"]
collect_ignore_glob = [] if find_spec("triton") else ["experiments/regard_experiments/gpu/triton/*"]
if not torch.cuda.is_available():  # Triton asks for it when it is imported
    os.environ.setdefault("TRITON_INTERPRET", "1")

CORE = (
    "regard._shapes",
    "regard._arguments",
    "regard._contexts",
    "regard._tensors",
    "regard.masks",
    "regard.inputs",
    "regard.steps",
    "regard.backends",
    "regard.pattern",
    "regard.attention",
    "regard.sdpa",
    "regard.record",
    "regard.lens.monitor",
    "regard.nn",
    "regard_experiments.distributed",
    "regard.lens.circuits",
)


def import_core_checked() -> None:
    """Import the core such that every call is held to its annotations."""
    assert "regard" not in sys.modules, "regard was imported before its annotations were checked"
    sys.path.insert(0, str(Path(__file__).parent / "tests"))  # the package `support`
    # And with it beartype, which must not see TYPE_CHECKING.
    jaxtyping.jaxtyped = importlib.import_module("support.typecheck").jaxtyped
    importlib.import_module("regard")  # whose face names all rooms for type checkers
    typing.TYPE_CHECKING = True
    try:
        with jaxtyping.install_import_hook(CORE, "support.typecheck.checked"):
            for name in CORE:
                importlib.import_module(name)
    finally:
        typing.TYPE_CHECKING = False


import_core_checked()

# The same examples on every run: a failure is a change of the code, not of the dice.
for name, examples in {"regard": 15, "thorough": 80}.items():
    hypothesis.settings.register_profile(
        name, deadline=None, derandomize=True, max_examples=examples, database=None
    )
hypothesis.settings.load_profile("regard")


def pytest_runtest_setup() -> None:
    """Count calls anew in each test, of which the first of each function are checked."""
    sys.modules["support.typecheck"].calls.clear()


def pytest_collection_finish() -> None:
    """Leave what was collected out of all collections of garbage: some tests ask for many."""
    gc.freeze()
    gc.enable()
    atexit.register(gc.unfreeze)  # or Triton says at the end that it was not taken down
