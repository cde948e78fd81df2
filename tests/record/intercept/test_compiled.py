"""Models that run under torch.compile are refused."""

import pytest
import torch
from support.interception import B, L, Stack, check_nothing_left_behind, close

import regard
from regard.record import RecordError


@pytest.fixture
def compiled():
    torch._dynamo.reset()
    yield lambda model: torch.compile(model, backend="eager")
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("passed", [False, True])
def test_compiled_models_are_refused(compiled, warm, passed):
    model, x = Stack(), torch.randn(B, L, 12)
    graph = compiled(model)
    if warm:
        graph(x)
    with (
        pytest.raises(RecordError, match=r"runs under torch\.compile.*_orig_mod"),
        regard.record(model if passed else None),
    ):
        graph(x)
    check_nothing_left_behind()
    with regard.record(graph._orig_mod) as recording:
        graph._orig_mod(x)
    close(recording[0], model.h[0].exact(x))


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_model_as_argument_is_refused_at_once(compiled):
    graph, ran = compiled(Stack()), False
    with (
        pytest.raises(RecordError, match=r"^Stack runs under torch\.compile"),
        regard.record(graph),
    ):
        ran = True
    assert not ran
    model = Stack()
    model.compile(backend="eager")
    with (
        pytest.raises(RecordError, match=r"^Stack runs under torch\.compile"),
        regard.record(model),
    ):
        ran = True
    assert not ran


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("warm", [False, True])
def test_a_compiled_part_is_refused(compiled, warm):
    model, x = Stack(), torch.randn(B, L, 12)
    model.h[1].compile(backend="eager")
    if warm:
        model(x)
    with pytest.raises(RecordError, match=r"runs under torch\.compile"), regard.record(model):
        model(x)
