"""Few cases that together hold every pair of options."""

import itertools
import random

import numpy as np


def every_pair(**options):
    """Returns cases, as dicts, in which each two values of two options meet.

    Args:
        **options: The values of each option.

    Returns:
        A list of dicts, a small part of the full product, the same in every run.
    """
    sizes = [len(values) for values in options.values()]
    product = list(itertools.product(*map(range, sizes)))
    random.Random(0).shuffle(product)
    product = np.array(product)
    # (case, pair of options): the number of the pair of values that meet there.
    pairs, num_pairs = [], 0
    for left, right in itertools.combinations(range(len(sizes)), 2):
        pairs.append(num_pairs + product[:, left] * sizes[right] + product[:, right])
        num_pairs += sizes[left] * sizes[right]
    pairs = np.stack(pairs, axis=1)
    missing, cases = np.ones(num_pairs, bool), []
    while missing.any():
        best = missing[pairs].sum(axis=1).argmax()
        missing[pairs[best]] = False
        values = zip(options.values(), product[best], strict=True)
        chosen = (of_option[i] for of_option, i in values)
        cases.append(dict(zip(options, chosen, strict=True)))
    return cases


def case_id(case):
    """Names a case in pytest's report."""
    return ",".join(f"{option}={value}" for option, value in case.items())
