"""Prints the lowest version of each dependency that setup.cfg declares.

Given to `pip install --constraint`, it installs exactly those, so that the tests can
show that the bounds hold.
"""

import configparser
import pathlib
import re

SETUP = pathlib.Path(__file__).resolve().parent.parent / "setup.cfg"


def declared():
    """Maps each extra, "" for the base, to its requirements, without markers."""
    config = configparser.ConfigParser()
    config.read(SETUP)
    extras = config["options.extras_require"].items()
    base = config["options"]["install_requires"]
    return {
        extra: [line.partition(";")[0] for line in lines.strip().splitlines()]
        for extra, lines in [("", base), *extras]
    }


def constraints():
    """Returns `name==version` for every requirement with a lower bound."""
    requirements = sorted({line for lines in declared().values() for line in lines})
    bounds = (re.fullmatch(r"([\w.-]+)>=([\w.]+)", line) for line in requirements)
    return [f"{bound[1]}=={bound[2]}" for bound in bounds if bound]


if __name__ == "__main__":
    print("\n".join(constraints()))
