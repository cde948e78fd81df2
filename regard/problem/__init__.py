"""One attention problem, its arguments checked and in one layout."""

from regard.problem._problem import Problem, check

__all__ = ["Problem", "check"]
