"""What each head of a model does, over a corpus: numbers, evidence and examples."""

from regard.lens.atlas.build import atlas, join
from regard.lens.atlas.corpus import Corpus
from regard.lens.atlas.result import Atlas

__all__ = ["Atlas", "Corpus", "atlas", "join"]
