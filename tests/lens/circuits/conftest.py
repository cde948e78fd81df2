"""Every test starts from the same random numbers; those that request a model see each in turn."""

import pytest
import torch
from support.circuit_models import MODELS


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(7)


@pytest.fixture(params=MODELS)
def model(request):
    return MODELS[request.param]()
