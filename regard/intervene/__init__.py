"""Interventions: change what a model attends to, and see what becomes of it."""

from regard.intervene._intervene import intervene
from regard.intervene._intervention import Intervention

__all__ = ["Intervention", "intervene"]
