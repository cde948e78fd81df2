"""What each head of a model does, over a corpus: numbers, evidence and examples."""

from regard.lens.head_atlas.build import atlas, join_atlas
from regard.lens.head_atlas.corpus import Corpus
from regard.lens.head_atlas.difference import AtlasDifference, Change
from regard.lens.head_atlas.result import Atlas

__all__ = ["Atlas", "AtlasDifference", "Change", "Corpus", "atlas", "join_atlas"]
