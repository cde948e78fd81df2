"""Compiled models run eagerly inside the block, which is said once, and as compiled after it."""

import threading

import pytest
import torch
from support.interception import B, L, Stack, check_nothing_left_behind, close

import regard
from regard.record import RecordError

# Torch's, of the hooks that name the modules: they may fire for a compiled module and for its own.
pytestmark = pytest.mark.filterwarnings("ignore:Using `torch.compile")

SAID = "is compiled; inside the block it runs eagerly"


@pytest.fixture
def graphs():
    """What was compiled: a list of graphs, and a backend that fills it."""
    torch._dynamo.reset()
    made = []

    def backend(graph, inputs):
        made.append(graph)
        return graph.forward

    with torch.no_grad():  # with gradients, the compiler warns of its own
        yield made, backend
    torch._dynamo.reset()


def whole(model, backend):
    return torch.compile(model, backend=backend)


def in_place(model, backend):
    model.compile(backend=backend)
    return model


def one_part(model, backend):
    model.h[1] = torch.compile(model.h[1], backend=backend)
    return model


def one_part_in_place(model, backend):
    model.h[1].compile(backend=backend)
    return model


@pytest.mark.parametrize(
    ("compiled", "passed"),
    [(whole, True), (in_place, False), (one_part, False), (one_part_in_place, True)],
)
def test_compiled_models_run_eagerly(graphs, compiled, passed):
    made, backend = graphs
    model, x = Stack(), torch.randn(B, L, 12)
    exact = [model.h[0].exact(x), model.h[1].exact(model.h[0](x))]
    graph = compiled(model, backend)
    before, count = graph(x), len(made)
    assert count > 0
    with (
        pytest.warns(RuntimeWarning, match=SAID) as said,
        regard.record(graph if passed else None) as recording,
    ):
        seen = (graph(x), graph(x))[0]
    assert sum(SAID in str(warning.message) for warning in said) == 1
    assert [layer.name for layer in recording.layers][:2] == ["h.0", "h.1"]
    for pattern, weights in zip(recording, exact, strict=False):
        close(pattern, weights)
    torch.testing.assert_close(seen, before, rtol=0, atol=1e-6)
    check_nothing_left_behind()
    assert torch.equal(graph(x), before)
    assert len(made) == count  # compiled as before, not anew


def test_a_compiled_model_that_never_ran(graphs):
    made, backend = graphs
    model, x = Stack(), torch.randn(B, L, 12)
    with pytest.warns(RuntimeWarning, match=f"^Stack {SAID}"), regard.record(model) as recording:
        torch.compile(model, backend=backend)(x)
    assert len(recording) == 2
    assert made == []


def test_compiled_functions_run_eagerly(graphs):
    """A method of a model, of which it is said; and any other function, of which it is not."""
    made, backend = graphs
    model, x = Stack(), torch.randn(B, L, 12)
    model.forward = torch.compile(model.forward, backend=backend)
    with pytest.warns(RuntimeWarning, match=f"^Stack {SAID}"), regard.record(model) as recording:
        model(x)
    assert len(recording) == 2
    with regard.record() as recording:
        torch.compile(Stack.forward, backend=backend)(model, x)
    assert len(recording) == 2
    assert made == []


@pytest.mark.filterwarnings("ignore:Stack is compiled")
def test_blocks_of_two_threads(graphs):
    """The last block to end lets compiled code run as such again."""
    _, backend = graphs
    model, x = torch.compile(Stack(), backend=backend), torch.randn(B, L, 12)
    opened, closed, counts = threading.Event(), threading.Event(), []

    def other():
        with regard.record() as recording:
            opened.set()
            closed.wait(30)
            model(x)
        counts.append(len(recording))

    thread = threading.Thread(target=other)
    with regard.record() as recording:
        thread.start()
        opened.wait(30)
        model(x)
    closed.set()
    thread.join()
    assert (len(recording), counts) == (2, [2])


@pytest.mark.filterwarnings("ignore")  # of what checks types in tests
def test_blocks_inside_compiled_functions_are_refused(graphs):
    _, backend = graphs
    model, x = Stack(), torch.randn(B, L, 12)

    @torch.compile(backend=backend)
    def recorded(x):
        with regard.record(model):
            return model(x)

    with pytest.raises(RecordError, match="put the with block around the call"):
        recorded(x)


def test_a_stance_that_is_changed_inside_the_block_is_refused(graphs):
    _, backend = graphs
    model, x = torch.compile(Stack(), backend=backend), torch.randn(B, L, 12)
    with (
        pytest.raises(RecordError, match="set_stance was called inside the block"),
        regard.record(),
        torch.compiler.set_stance("default"),
    ):
        model(x)
