"""Interventions: change the attention of a model while it runs."""

from regard.intervene._intervention import Intervention, intervene

__all__ = ["Intervention", "intervene"]
