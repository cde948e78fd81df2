"""What each head of a model does, over a corpus: numbers, evidence and examples."""

from regard.lens.head_atlas.build import atlas, join_atlas
from regard.lens.head_atlas.corpus import Corpus
from regard.lens.head_atlas.difference import AtlasDifference, Change
from regard.lens.head_atlas.headvis_read import HeadVis, load_headvis
from regard.lens.head_atlas.headvis_tree import export_headvis
from regard.lens.head_atlas.result import Atlas

__all__ = [
    "Atlas",
    "AtlasDifference",
    "Change",
    "Corpus",
    "HeadVis",
    "atlas",
    "export_headvis",
    "join_atlas",
    "load_headvis",
]
