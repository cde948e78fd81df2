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

from beartype import beartype
from beartype._check.code import codemain
from beartype.roar import BeartypeCallHintParamViolation, BeartypeDecorHintPep585DeprecationWarning

# It checks one entry of a list, which it draws by Python's global generator. A thread that calls a
# checked function would so change the state that hypothesis watches while it draws an example.
codemain.getrandbits = random.Random(0).getrandbits


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
