"""Backends that compute attention, and the choice between them."""

from regard.backends.choice import NAMES, Choice, choose, choose_checked, reader_of, run
from regard.backends.native.quick import quick

__all__ = ["NAMES", "Choice", "choose", "choose_checked", "quick", "reader_of", "run"]
