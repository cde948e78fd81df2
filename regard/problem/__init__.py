"""One attention problem, its arguments checked and in one layout."""

from regard.problem._problem import Problem, check
from regard.problem.scoring import Scoring, ScoringOptions, check_mask

__all__ = ["Problem", "Scoring", "ScoringOptions", "check", "check_mask"]
