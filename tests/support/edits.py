"""Changes of models with 2 layers or more, 6 heads, 2 sequences and 7 positions or more."""

import regard
from support.changed_attention import edit


def changed(model, edits, call):
    """Call a model under an intervention that makes these changes."""
    with regard.intervene(model) as change:
        for each in edits:
            each.state(change)
        return call()


WEIGHTS = {
    "hide one key": [edit("knock_out", layers=1, keys=2)],
    "hide from the last query": [edit("knock_out", layers=0, queries=-1, keys=slice(4, 7))],
    "hide in some heads": [
        edit("knock_out", queries=slice(3, None), keys=[1, 3, -2], heads=[1, -1, 2])
    ],
    "hide in one sequence": [edit("knock_out", layers=[0, 1], keys=[0, 4], batch=1, heads=3)],
    "hide in heads named twice": [edit("knock_out", layers=1, keys=2, heads=[0, -6, 1, 2, 3, 4])],
    "hide whole rows": [edit("knock_out", layers=0, queries=[3, 5], keys=slice(None))],
    "hide every other key": [edit("knock_out", layers=1, keys=slice(1, None, 2))],
    "hide twice": [
        edit("knock_out", layers=1, keys=slice(2, 5), heads=0),
        edit("knock_out", layers=1, keys=slice(3, 6), queries=slice(4, None)),
    ],
    "add": [edit("steer", layers=slice(0, 2), keys=[2, 3], by=0.7)],
    "add twice": [
        edit("steer", layers=1, keys=slice(2, 5), by=1.5, heads=[0, 1, 4]),
        edit("steer", layers=1, keys=slice(3, None), by=-2.5, queries=slice(-3, None)),
    ],
    "add and hide": [
        edit("steer", layers=1, keys=slice(1, 5), by=1.5),
        edit("knock_out", layers=1, keys=slice(3, 4), queries=slice(3, None)),
    ],
    "even": [edit("temper", layers=0, by=0.25)],
    "sharp": [edit("temper", by=3)],
}
HEADS = {
    "factors of heads": [
        edit("temper", layers=1, by=0.25, heads=[0, 5]),
        edit("temper", layers=1, by=2.0, heads=slice(4, None), batch=0),
    ],
    "add, then multiply": [
        edit("temper", layers=1, by=0.5, heads=slice(0, 3)),
        edit("steer", layers=1, keys=slice(1, 4), by=1.5),
        edit("knock_out", layers=1, keys=slice(3, 5)),
    ],
}
CONTEXTS = {
    "no heads": [edit("ablate", layers=1, heads=[0, 2])],
    "no layer": [edit("ablate", layers=0)],
    "no head of a sequence": [edit("ablate", heads=-1, batch=0)],
    "means": [edit("ablate", layers=0, heads=slice(1, 4), by="mean")],
    "means of what is left": [
        edit("ablate", layers=1, heads=slice(1, 4), by="mean"),
        edit("knock_out", layers=1, queries=[3, 5], keys=slice(None), heads=[1, 4]),
    ],
}
TOGETHER = {
    "all together": [
        edit("ablate", layers=1, heads=0, by="mean"),
        edit("temper", layers=1, by=1.7),
        edit("ablate", layers=0, heads=5),
        edit("steer", layers=[0, 1], keys=[1, 2, -1], by=0.9, queries=slice(2, None)),
        edit("knock_out", layers=1, keys=slice(2, 4), queries=slice(5, None), heads=[0, 1, 2, 3]),
        edit("knock_out", layers=0, keys=3, queries=[4, -1], batch=1),
    ],
}
ALL = WEIGHTS | HEADS | CONTEXTS | TOGETHER
