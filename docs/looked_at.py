"""Print what the model that comes with the package looks at, and what it needs, by kind of link.

`python docs/looked_at.py 100` prints the table of looked-at.md for all links of the stories of the
seeds 0 to 99, which training has not seen.
"""

from __future__ import annotations

import sys

from regard.gpt import link_effects, load
from regard.gpt.stories import stories

if __name__ == "__main__":
    model, tokenizer = load()
    print(link_effects(model, tokenizer, stories(0, int(sys.argv[1]))))
