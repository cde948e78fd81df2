"""`python -m regard.train` is the command `regard train`, for launchers that start a module.

It is run and never imported: as a name, `regard.train` is the function `regard.gpt.train`, which
this module would hide.
"""

if __name__ == "__main__":
    from regard.cli import main

    main("train")

if __name__ == "regard.train":
    raise ImportError("regard.train is a function: `from regard import train`, or `regard.train`")
