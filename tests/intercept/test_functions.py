"""However a model holds a library's function, its calls are seen, and it gets its code back."""

import functools
import inspect
import sys
import threading
from importlib import import_module
from types import ModuleType

import pytest
import torch
from support import gpu_libraries
from support.gpu_libraries import flash_attn_func as under_another_name
from support.interception import B, Block, L

import regard

x = torch.randn(B, L, 3, 4)


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch):
    gpu_libraries.install(monkeypatch)


def in_a_closure(function):
    return lambda: function(x, x, x)


@pytest.mark.parametrize(
    "call",
    [
        lambda: under_another_name(x, x, x),
        functools.partial(under_another_name, x, x, v=x),
        in_a_closure(under_another_name),
        lambda: sys.modules["flash_attn"].flash_attn_func(q=x, k=x, v=x),
    ],
)
def test_holders_of_a_function(call):
    code, signature = under_another_name.__code__, inspect.signature(under_another_name)
    with regard.record() as recording:
        call()
        assert inspect.signature(under_another_name) == signature
        with regard.record() as inner:
            call()
    assert (len(recording), len(inner)) == (2, 1)
    assert under_another_name.__code__ is code
    assert vars(under_another_name) == {}


def test_a_function_with_cells(monkeypatch):
    """As decorators make them."""
    offset = torch.ones(1)

    def flash_attn_func(q, k, v):
        return under_another_name(q + offset, k, v)

    monkeypatch.setattr(sys.modules["flash_attn"], "flash_attn_func", flash_attn_func)
    plain = flash_attn_func(x, x, x)
    with regard.record() as recording:
        assert torch.equal(flash_attn_func(x, x, x), plain)
    assert len(recording) == 1
    assert torch.equal(flash_attn_func(x, x, x), plain)


def test_a_library_that_is_imported_inside_the_block(monkeypatch, tmp_path):
    """And called at once, by whoever holds its function, but not after the block."""
    (tmp_path / "flash_attn.py").write_text(
        "from support.gpu_libraries import flash_attn_func\n"
        "SOURCE = __loader__.get_source(__name__)\n"
    )
    monkeypatch.delitem(sys.modules, "flash_attn")
    monkeypatch.syspath_prepend(tmp_path)
    code = under_another_name.__code__
    with regard.record() as recording:
        from flash_attn import SOURCE

        under_another_name(x, x, x)
    assert len(recording) == 1
    assert "SOURCE" in SOURCE, "its loader is its own"
    assert under_another_name.__code__ is code


def test_a_library_whose_import_fails_inside_the_block(monkeypatch, tmp_path):
    (tmp_path / "flash_attn.py").write_text("raise ImportError('no GPU')")
    monkeypatch.delitem(sys.modules, "flash_attn")
    monkeypatch.syspath_prepend(tmp_path)
    block = Block()
    with regard.record(block) as recording:
        with pytest.raises(ImportError, match="no GPU"):
            import_module("flash_attn")
        block(torch.randn(B, L, 12))
    assert len(recording) == 1


def test_a_partial_function_is_named_and_left_alone(monkeypatch):
    monkeypatch.setitem(sys.modules, "flash_attn", ModuleType("flash_attn"))
    partial = sys.modules["flash_attn"].flash_attn_func = functools.partial(under_another_name)
    block = Block()
    message = r"flash_attn\.flash_attn_func is a partial and no plain Python function"
    with pytest.warns(RuntimeWarning, match=message) as caught:  # noqa: SIM117, PT031 - one of two calls warns
        with regard.record(block) as recording:
            block(torch.randn(B, L, 12))
            block(torch.randn(B, L, 12))
    assert (len(recording), len(caught)) == (2, 1)
    assert sys.modules["flash_attn"].flash_attn_func is partial


def test_blocks_of_two_threads():
    """The last block to end gives the function its code back, and each sees its own calls."""
    code = under_another_name.__code__
    opened, closed, counts = threading.Event(), threading.Event(), []

    def other():
        with regard.record() as recording:
            opened.set()
            closed.wait(30)
            under_another_name(x, x, x)
        counts.append(len(recording))

    thread = threading.Thread(target=other)
    with regard.record() as recording:
        thread.start()
        opened.wait(30)
        under_another_name(x, x, x)
        under_another_name(x, x, x)
    code_between = under_another_name.__code__
    under_another_name(x, x, x)  # on a thread that has no block
    closed.set()
    thread.join()
    assert code_between is not code
    assert (len(recording), counts) == (2, [1])
    assert under_another_name.__code__ is code
