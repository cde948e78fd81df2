"""The ways to compute attention on a machine, and the choice between them."""

from regard.backends._choice import NAMES, Choice, choose, run
from regard.backends.native._quick import quick

__all__ = ["NAMES", "Choice", "choose", "quick", "run"]
