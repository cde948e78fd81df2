"""The type checker that the annotations of the core are held to in tests.

It is beartype, with one difference: what a caller hands over is judged after the function has run,
not before. A function of this package must refuse a wrong argument itself, with the error that its
docstring names, and tests look for that error. If it takes the argument without complaint although
its annotation forbids it, that is reported then.
"""

import functools
import inspect
import random
import re
import warnings

import jaxtyping
from beartype import beartype
from beartype._check.code import codemain
from beartype.roar import BeartypeCallHintParamViolation, BeartypeDecorHintPep585DeprecationWarning

# It checks one entry of a list, which it draws by Python's global generator. A thread that calls a
# checked function would so change the state that hypothesis watches while it draws an example.
codemain.getrandbits = random.Random(0).getrandbits

_JAXTYPED = jaxtyping.jaxtyped

# Of the calls of a function in a test the first few are checked, and then one in some: to check all
# of them took a third of the tests' time.
_FIRST, _EVERY = 4, 16

calls: dict[object, int] = {}
"""How often each function was called in the current test."""


def checked(function):
    """Check a stand-in that jaxtyping makes of a function; it makes two of each.

    One takes the function's arguments, before the function runs. The other takes them and the
    result, as an extra keyword ``ret0``, and is called afterwards. Functions inside functions are
    left alone: they would be decorated anew at every call.
    """
    if "<locals>" in function.__qualname__:
        return function
    with warnings.catch_warnings():  # rich spells its own types the old way
        warnings.simplefilter("ignore", BeartypeDecorHintPep585DeprecationWarning)
        strict = beartype(function)
    parameters = inspect.signature(function).parameters
    result = next((name for name in parameters if re.fullmatch(r"ret\d+", name)), None)

    @functools.wraps(function)
    def checker(*args, **kwargs):
        if result is not None and kwargs[result] is NotImplemented:
            return  # an operator's way of refusing: Python raises the TypeError
        try:
            strict(*args, **kwargs)
        except BeartypeCallHintParamViolation:
            if result is not None:
                raise

    return checker


def jaxtyped(*, typechecker):
    """In the place of jaxtyping's: leave its scopes of axes to the functions that name shapes.

    They cost more than most functions of the core, and make functions inside functions anew at
    every call. The others are checked by beartype alone.
    """
    with_shapes = _JAXTYPED(typechecker=typechecker)

    def decorate(thing):
        if not inspect.isfunction(thing):
            return with_shapes(thing)
        if _names_shapes(thing):
            return _sampled(thing, with_shapes(thing))
        if "<locals>" in thing.__qualname__:
            return thing
        return _sampled(thing, _without_shapes(thing))

    return decorate


def _sampled(function, checker):
    """Check some of a function's calls."""

    @functools.wraps(function)
    def call(*args, **kwargs):
        count = calls.get(call, 0)
        calls[call] = count + 1
        is_checked = count < _FIRST or count % _EVERY == 0
        return (checker if is_checked else function)(*args, **kwargs)

    return call


def _names_shapes(function):
    """Whether an annotation, or a name in it such as an alias, is one of jaxtyping's."""
    if "<locals>" in function.__qualname__:
        return False
    names = set(re.findall(r"\w+", " ".join(map(str, function.__annotations__.values()))))
    known = (function.__globals__.get(name) for name in names)
    return any("jaxtyping" in f"{getattr(thing, '__module__', '')} {thing!r}" for thing in known)


def _without_shapes(function):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BeartypeDecorHintPep585DeprecationWarning)
        strict = beartype(function)

    @functools.wraps(function)
    def checker(*args, **kwargs):
        if jaxtyping.config.jaxtyping_disable:
            return function(*args, **kwargs)
        try:
            return strict(*args, **kwargs)
        except BeartypeCallHintParamViolation as error:
            if error.__traceback__.tb_next.tb_next is not None:
                raise  # of a call inside the function
            violation = error
        result = function(*args, **kwargs)  # which is to refuse them itself
        if result is NotImplemented or "return" not in function.__annotations__:
            return result
        raise violation

    return checker
