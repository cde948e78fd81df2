"""Sentences that someone says and someone else repeats."""


def _split(text: str) -> list[str]:
    return [sentence.strip() for sentence in " ".join(text.split()).split("|")]


_WHO = ("eaten", "hidden", "taken", "stolen", "painted", "broken", "forgotten", "swallowed")
_WHAT = _split("""
    the butter|my slippers|our breakfast|the biggest pancake|your grandfather's hat|the
    front door key|the last sausage|all the cheese|my best marble|the honey jar|that
    enormous turnip|the sugar bowl
""")
_WHERE = ("under the bed", "behind the curtain", "in the chimney", "on the roof", "down the well",
          "between the pages", "inside the teapot", "at the bottom of the sea")  # fmt: skip
_CREATURES = _split("""
    a pirate|a ghost|a polite burglar|the king of spoons|a singing cabbage|my uncle| an
    invisible postman|the dentist|a family of hedgehogs
""")
_ADVICE = _split("""
    Never tickle a sleeping dragon.|Please pass the pepper and salt.|Hurry up, the soup is
    getting cold!|Good children wash behind their ears!|Every pirate needs a clean
    handkerchief.|Seven silly sailors sold some soap.|Turn left at the chocolate
    factory.|Somebody ought to feed the crocodile!|Nobody leaves before the music
    stops.|Ladies and gentlemen, the show begins!|Stop that train before it reaches the
    station!|Wrap up warmly, winter is coming!|Long live the queen of the puddles!|My nose
    is longer than your nose.|Give me one good reason to get up!
""")


def lines() -> list[str]:
    """Return all sentences that can be repeated; each ends with its own mark."""
    stolen = [f"Who has {verb} {what}?" for verb in _WHO for what in _WHAT]
    hidden = [f"There is {creature} {where}." for creature in _CREATURES for where in _WHERE]
    return [*stolen, *hidden, *_ADVICE * 5]
