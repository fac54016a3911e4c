"""Few cases that together hold every pair of options."""

import itertools
import random


def every_pair(**options):
    """Returns cases, as dicts, in which each two values of two options meet.

    Args:
        **options: The values of each option.

    Returns:
        A list of dicts, a small part of the full product, the same in every run.
    """
    product = [
        dict(zip(options, values, strict=True))
        for values in itertools.product(*options.values())
    ]
    random.Random(0).shuffle(product)
    pairs = [
        {
            ((left, str(case[left])), (right, str(case[right])))
            for left, right in itertools.combinations(options, 2)
        }
        for case in product
    ]
    missing, cases = set().union(*pairs), []
    while missing:
        best = max(range(len(product)), key=lambda i: len(pairs[i] & missing))
        cases.append(product[best])
        missing -= pairs[best]
    return cases


def case_id(case):
    """Names a case in pytest's report."""
    return ",".join(f"{option}={value}" for option, value in case.items())
