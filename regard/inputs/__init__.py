"""The checked arguments of one attention call, in one layout."""

from regard.inputs._problem import Problem, check
from regard.inputs.scoring import Scoring, ScoringOptions, check_mask

__all__ = ["Problem", "Scoring", "ScoringOptions", "check", "check_mask"]
