"""Errors inside a recording and of it; nothing is left behind."""

import contextlib

import pytest
import torch
from support.interception import B, Block, L, check_nothing_left_behind, close, encoder
from support.recordings import unchecked
from torch import nn

import regard
from regard.record import RecordError


class Failing(nn.Module):
    def __init__(self, error):
        super().__init__()
        self.error = error

    def forward(self, x):
        if self.error is not None:
            raise self.error
        return x


ERRORS = [RuntimeError("failed"), KeyboardInterrupt(), ValueError("failed"), SystemExit(1)]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("where", ["block", "module", "fused", "first"])
def test_errors_pass_and_leave_nothing_behind(error, where):
    x = torch.randn(B, L, 12)
    model = nn.Sequential(Block(), Failing(error), Block())
    if where == "fused":
        model = encoder(nested=False).eval()
        model.layers[1] = nn.Sequential(Failing(error))
        model.layers[1].forward = lambda x, **_: model.layers[1][0](x)
    if where == "first":
        model = nn.Sequential(Failing(error), Block())
    with torch.no_grad():
        with pytest.raises(type(error)) as caught, regard.record(model):  # noqa: PT012 - the last call alone raises
            if where == "block":
                raise error
            model(x)
        assert caught.value is error
        check_nothing_left_behind()
        block = Block()
        with regard.record() as recording:
            block(x)
    assert len(recording) == 1
    close(recording[0], block.exact(x))


@pytest.mark.parametrize("error", ERRORS[:2], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("fused", [False, True])
def test_errors_that_are_caught_inside_the_block(error, fused):
    x = torch.randn(B, L, 12)
    model = nn.Sequential(Block(), Failing(error))
    if fused:
        model = encoder(nested=False).eval()
        model.layers[1] = nn.Sequential(Failing(error))
        model.layers[1].forward = lambda x, **_: model.layers[1][0](x)
    after = nn.Sequential(Block())
    with torch.no_grad(), regard.record() as recording:
        with contextlib.suppress(type(error)):
            model(x)
        after(x)
    assert recording.layers[-1].name == "0"
    close(recording[len(recording) - 1], after[0].exact(x))


def test_a_failed_run_counts_as_a_run_of_its_own():
    x = torch.randn(B, L, 12)
    failing = Failing(RuntimeError("failed"))
    model = nn.Sequential(Block(), failing, Block())
    with regard.record(model) as recording:
        with pytest.raises(RuntimeError, match="failed"):
            model(x)
        failing.error = None
        model(x)
    assert [layer.name for layer in recording.layers] == ["0", "0", "2"]
    assert [layer.index for layer in recording.layers] == [0, 0, 1]


def test_no_call_is_an_error():
    model = Block()
    with (
        pytest.raises(RecordError, match="no attention call was seen; a model of transformers"),
        regard.record(),
    ):
        torch.randn(3) @ torch.randn(3)
    with (
        pytest.raises(RecordError, match="no attention call of Block was seen; call the model"),
        regard.record(model),
    ):
        Block()(torch.randn(B, L, 12))
    with pytest.raises(ZeroDivisionError), regard.record(model):
        _ = 1 / 0


@pytest.mark.parametrize("model", [3, "gpt2", torch.relu, [Block()]])
def test_arguments_that_are_no_modules_are_refused(model):
    with (
        pytest.raises(TypeError, match=r"model must be a torch.nn.Module or None, but is"),
        unchecked(model),
    ):
        pass
