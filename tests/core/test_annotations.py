"""The shapes in the core's annotations are checked in these tests; see conftest.py."""

import inspect
import itertools
import random
import sys
import typing

import jaxtyping
import pytest
import torch
from jaxtyping import Float
from support.typecheck import checked
from torch import Tensor

import regard

CORE = sorted(
    name
    for name, module in sys.modules.items()
    if name.split(".")[0] == "regard" and hasattr(module, "jaxtyping")
)


def functions(module):
    """Every function and method defined in a module."""
    for owner in (module, *(c for c in vars(module).values() if inspect.isclass(c))):
        if owner is not module and owner.__module__ != module.__name__:
            continue
        for member in vars(owner).values():
            function = getattr(member, "fget", getattr(member, "__func__", member))
            if inspect.isfunction(function) and function.__module__ == module.__name__:
                yield function


def test_all_of_the_core_is_checked():
    held = {name.split(".")[1] for name in CORE}
    assert held >= {"masks", "steps", "attention", "backends", "pattern", "inputs", "sdpa", "nn"}


def test_every_annotation_can_be_read():
    """What can't be, jaxtyping takes for Any without a word."""
    for function in itertools.chain.from_iterable(functions(sys.modules[name]) for name in CORE):
        typing.get_type_hints(inspect.unwrap(function), include_extras=True)


def test_functions_are_wrapped():
    for function in (regard.attention, regard.explain, regard.Pattern.entropy, regard.causal):
        assert hasattr(function, "__wrapped__"), function


def test_a_result_of_the_wrong_shape_is_caught(monkeypatch):
    module = sys.modules["regard.attention"]
    run = module.run

    def one_query_too_few(problem, choice):
        context, logsumexp = run(problem, choice)
        return context[..., 1:, :], logsumexp

    monkeypatch.setattr(module, "run", one_query_too_few)
    monkeypatch.setattr("regard.inputs.Problem.restore", lambda self, result: result[0])
    x = torch.randn(3, 5, 7)
    with pytest.raises(
        jaxtyping.TypeCheckError, match=r"return value of regard\.attention\.attention"
    ):
        regard.attention(x, x, x, backend="eager")


def test_a_step_of_the_wrong_shape_is_caught(monkeypatch):
    module = sys.modules["regard.steps"]
    written_out = module.written_out

    def transposed(problem):
        for name, tensor in written_out(problem):
            yield name, tensor.mT if name == "weights" else tensor

    monkeypatch.setattr(module, "written_out", transposed)
    with pytest.raises(jaxtyping.TypeCheckError, match="weights"):
        regard.explain(torch.randn(5, 3), torch.randn(7, 3), torch.randn(7, 2))


def test_a_result_of_the_wrong_dtype_is_caught(monkeypatch):
    monkeypatch.setattr("regard.masks.rows.Rows.visible", lambda self, rows, columns: self.start)
    with pytest.raises(
        jaxtyping.TypeCheckError, match=r"return value of regard\.masks\._mask\.Mask\.visible"
    ):
        regard.causal().visible(3, 3)


@jaxtyping.jaxtyped(typechecker=checked)
def trace(matrix: Float[Tensor, "n n"]) -> Float[Tensor, ""]:
    if matrix.ndim != 2:
        raise ValueError("matrix must have two axes")
    return matrix.diagonal().sum()


def test_a_wrong_argument_gets_the_function_s_own_error():
    with pytest.raises(ValueError, match="two axes"):
        trace(torch.randn(3))


def test_a_wrong_argument_that_is_not_refused_is_caught():
    with pytest.raises(jaxtyping.TypeCheckError):
        trace(torch.randn(3, 5))
    assert trace(torch.eye(3)) == 3


def test_a_check_does_not_change_python_s_random_state():
    """Else a thread that calls the core changes them while hypothesis draws an example."""

    def of_list(ret0: list[int]) -> None:
        pass

    of_list.__qualname__ = "of_list"  # functions inside functions are not checked
    check = checked(of_list)
    before = random.getstate()
    for _ in range(3):
        check(ret0=[1, 2, 3])
    assert random.getstate() == before
    with pytest.raises(Exception, match="int"):
        check(ret0=["a"])


def test_the_first_calls_of_a_test_are_checked_and_a_sample_of_the_rest():
    caught = []
    for _ in range(40):
        try:
            trace(torch.ones(3, 5))
        except jaxtyping.TypeCheckError:
            caught.append(True)
        else:
            caught.append(False)
    assert all(caught[:4])
    assert 0 < sum(caught[4:]) < 36
