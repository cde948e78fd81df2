"""A language model by its name: found, loaded, and its places proved.

`open` takes a name on the Hugging Face hub, a folder, a GGUF, a model of Ollama, or None for the
model that comes with regard, and returns a `LanguageModel`.
"""

from typing import TYPE_CHECKING

from regard._faces import make_lazy

if TYPE_CHECKING:
    from regard.models.language_model import LanguageModel
    from regard.models.opening import open  # noqa: A004 - regard.models.open
    from regard.models.places import Block, Places
    from regard.models.proof import Check
    from regard.models.text import Prompt

__all__ = ["Block", "Check", "LanguageModel", "Places", "Prompt", "open"]

_HOMES = {
    "LanguageModel": "language_model",
    "open": "opening",
    "Block": "places",
    "Places": "places",
    "Check": "proof",
    "Prompt": "text",
}

make_lazy(__name__, _HOMES)
