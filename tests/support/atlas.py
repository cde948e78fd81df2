"""An atlas of numbers made up from a seed, with all that `regard.page.atlas` takes."""

import random

LAYERS, HEADS = 5, 7
WINDOW, LINKS, EXAMPLES = 40, 5, 10
SCRIPT = "</script><img src=x onerror=alert(1)>"
TEXT = """the of and to in that was his he it with as had for at by on not be her you which him she
they said all but from were when we there would out an so been what up one into them then some time
command returns the value option file output Mr Darcy Elizabeth because although"""
WORDS = TEXT.split()
BYTES = ["<0xE2>", "<0x82>", "<0xAC>"]  # a character of three tokens
COLUMNS = [
    (
        "induction",
        "lead",
        "roles",
        "How much more weight than its control goes to the token after an earlier same one.",
    ),
    (
        "previous_token",
        "lead",
        "roles",
        "How much more weight than its control goes to the token before.",
    ),
    (
        "duplicate_token",
        "lead",
        "roles",
        "How much more weight than its control goes to an earlier same token.",
    ),
    ("resting", "share", "rest", "The share of the weight on the keys that the head rests on."),
    ("first_token", "share", "rest", "The share of the weight on the first token."),
    ("distance", "tokens", "reach", "How far away the keys are, weighted, beside the sinks."),
    ("entropy", "nats", "reach", "How widely the weight is spread beside the sinks."),
    (
        "window_90",
        "tokens",
        "reach",
        "The window that holds nine tenths of the weight beside the sinks.",
    ),
    (
        "moved",
        "",
        "moved",
        "What arrives at a token on average: weight times the length of the value.",
    ),
    (
        "toward",
        "",
        "moved",
        "What the head adds to the logit of the token that follows, on average.",
    ),
    ("copying", "lead", "headvis", "Whether the tokens that are looked at become likelier."),
    (
        "needed",
        "nats",
        "needed",
        "What the loss gains on the tokens of its name with the head off.",
    ),
]
CLASSES = ["punctuation", "name", "digit", "code", "word", "other"]
ROLES = [
    ("induction", "rests {rest:.0f} %; else: induction"),
    ("previous token", "previous token"),
    ("resting", "rests {rest:.0f} %"),
    ("other", "no role that is known"),
]


class MadeUp:
    """What `regard.page.atlas.write_atlas` takes, and no more."""

    def __init__(self, *, layers=LAYERS, heads=HEADS, examples=EXAMPLES, seed=0):
        self.examples, self.seed = examples, seed
        draw = random.Random(seed)
        self.about = {
            "model": "made-up-35",
            "model_fingerprint": "5f1c0a7e2b9d4c33",
            "corpus": ["bash/README", "novels/*.txt"],
            "documents": 431,
            "tokens": 1_048_573,
            "duplicates": 3,
            "strided": 29,
            "length": 2048,
            "seed": 0,
            "effects": {"documents": 22, "share": 0.05},
            "made_with": "regard 0.1.0",
            "torch": "2.9.0",
            "threads": 1,
        }
        self.columns = [
            {
                "name": name,
                "title": name.replace("_", " "),
                "meaning": meaning,
                "unit": unit,
                "group": group,
            }
            for name, unit, group, meaning in COLUMNS
        ]
        self.rows = [
            self._row(draw, layer, head) for layer in range(layers) for head in range(heads)
        ]

    def _row(self, draw, layer, head):
        role, words = draw.choices(ROLES, [1, 1, 3, 2])[0]
        row = {
            "layer": layer,
            "head": head,
            "role": role,
            "words": words.format(rest=draw.uniform(50, 95)),
            "evidence": f"{draw.uniform(0.2, 0.9):.2f} ± 0.05 over {draw.randrange(9000)} queries",
            "discovery": draw.random() < 0.7,
        }
        for name, unit, *_ in COLUMNS:
            scale = {"tokens": 400, "nats": 5, "": 3}.get(unit, 1)
            value = scale * draw.random() ** 2 - (0.2 if unit == "lead" or name == "toward" else 0)
            measured = draw.random() > (0.6 if name == "needed" else 0.06)
            row[name] = value if measured else None
            row[f"{name}_margin"] = scale * draw.uniform(0, 0.1) if measured else None
        return row

    def details(self, layer, head):
        draw = random.Random(f"{self.seed} {layer} {head}")
        row = next(r for r in self.rows if (r["layer"], r["head"]) == (layer, head))
        first = draw.uniform(0.3, 0.8)
        edges = [0, *(2**k for k in range(11))]
        raw = [draw.random() ** 3 for _ in edges]
        wide = [1.0, *(float(2**k) for k in range(10)), 1024.0]
        return {
            "layer": layer,
            "head": head,
            "row": row,
            "resting": {"first token": first, "separator": 0.6 * (1 - first), "other": 0.02},
            "profile": {
                "edges": edges,
                "share": [one / sum(raw) for one in raw],
                "uniform": [one / sum(wide) for one in wide],
            },
            "classes": {
                "query": {
                    name: {
                        "queries": draw.randrange(100, 90_000),
                        "resting": draw.random(),
                        "entropy": draw.uniform(0, 4),
                        "moved": draw.uniform(0, 3),
                        "toward": draw.uniform(-0.1, 0.5),
                    }
                    for name in CLASSES[:-1]
                }
                | {CLASSES[-1]: {}},
                "key": {name: {"share": draw.random() / 3, "uniform": 1 / 6} for name in CLASSES},
            },
            "histogram": {
                "edges": [k / 10 for k in range(11)],
                "counts": [draw.randrange(10**4) for _ in range(10)],
            },
            "examples": {
                "moved": self._examples(draw, "moved"),
                "received": self._examples(draw, "received"),
                "effect": self._examples(draw, "effect"),
                "deciles": self._examples(draw, "deciles"),
                "sample": self._examples(draw, "sample"),
            },
            "needed": None
            if row["needed"] is None
            else {
                "tokens": "tokens whose token stood before",
                "loss": 1.91234567,
                "without": 2.4012345,
                "control": f"{layer}.{(head + 1) % HEADS}",
                "without_control": 1.92,
                "queries": 317,
                "margin": 0.0512,
            },
        }

    def _examples(self, draw, kind):
        made = [self._example(draw, kind, k) for k in range(self.examples)]
        return made if kind == "deciles" else sorted(made, key=lambda one: -one["value"])

    def _example(self, draw, kind, k):
        tokens = [f" {draw.choice(WORDS)}" for _ in range(WINDOW)]
        tokens[draw.randrange(1, WINDOW)] = ","
        tokens[draw.randrange(1, WINDOW)] = ".\n"
        tokens[draw.randrange(1, WINDOW)] = "  "
        if k == 0:
            tokens[3:6], tokens[7] = BYTES, SCRIPT
        start = draw.randrange(100, 1500)
        position = start + (5 if kind == "received" else WINDOW - 9)
        span = (
            range(position + 1, position + 60)
            if kind == "received"
            else range(start - 50, position)
        )
        weights = sorted((draw.random() ** 2 / 2 for _ in range(LINKS)), reverse=True)
        return {
            "document": draw.randrange(431),
            "source": draw.choice(["bash/README", "novels/pride-and-prejudice.txt"]),
            "position": position,
            "start": start,
            "tokens": tokens,
            "value": draw.random(),
            "decile": k + 1 if kind == "deciles" else None,
            "rest": draw.random(),
            "moved": draw.uniform(0, 4),
            "toward": draw.uniform(-1, 1),
            "effect": draw.uniform(-0.1, 0.1) if kind == "effect" else None,
            "links": [
                {
                    "position": place,
                    "weight": weight,
                    "moved": 3 * draw.random() * weight,
                    "tokens": tokens[place - start - 1 : place - start + 2]
                    if start < place < start + WINDOW - 1
                    else [f" {draw.choice(WORDS)}" for _ in range(3)],
                    "at": 1,
                }
                for place, weight in zip(draw.sample(span, LINKS), weights, strict=True)
            ],
        }
