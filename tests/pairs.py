"""Few cases that together hold every pair of options."""

import itertools
import random

import numpy as np
import pytest

# Not on JAX, which would compile what is tested for seconds, operation by operation.
elsewhere = pytest.mark.backends("tensorflow", "torch")


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
    # Greedy: next comes the case with the most pairs that no case has yet.
    while missing.any():
        best = missing[pairs].sum(axis=1).argmax()
        missing[pairs[best]] = False
        values = zip(options.values(), product[best], strict=True)
        chosen = (of_option[i] for of_option, i in values)
        cases.append(dict(zip(options, chosen, strict=True)))
    return cases


def every_value(cases):
    """Returns the first of the cases that together hold each value of each option."""
    seen, chosen = set(), []
    for case in cases:
        values = {(option, repr(value)) for option, value in case.items()}
        if not values <= seen:
            seen |= values
            chosen.append(case)
    return chosen


def each_case(cases):
    """Runs a test once for each case, its argument `case`.

    On TensorFlow and JAX, which take seconds for a case, only the cases that together
    hold each value are in the default tier. On PyTorch all are.

    Args:
        cases: What `every_pair` gave.

    Returns:
        A decorator.
    """
    names = [case_id(case) for case in cases]
    few = [case_id(case) for case in every_value(cases)]
    return each_variant("case", dict(zip(names, cases, strict=True)), few, few)


def each_variant(argument, variants, on_jax, on_tensorflow=None, on_torch=None):
    """Runs a test once for each variant, in the default or the slow tier by backend.

    Args:
        argument: The name of the test's argument.
        variants: A dict from the names of the variants, for pytest's report, to what
            the test is given.
        on_jax: Names of the variants in JAX's default tier; it compiles each for
            seconds. The others are slow tests there.
        on_tensorflow: The same for TensorFlow, which traces for seconds; None: all.
        on_torch: The same for PyTorch; None: all.

    Returns:
        A decorator.
    """
    chosen = {"tensorflow": on_tensorflow, "jax": on_jax, "torch": on_torch}
    chosen = {x: variants if y is None else y for x, y in chosen.items()}
    unknown = set().union(*chosen.values()) - {*variants}
    if unknown:
        raise ValueError(f"No such variants: {sorted(unknown)}.")
    return pytest.mark.parametrize(
        argument,
        [
            pytest.param(
                value,
                id=name,
                marks=pytest.mark.slow_on(
                    *(x for x in chosen if name not in chosen[x])
                ),
            )
            for name, value in variants.items()
        ],
    )


def slow(*values):
    """Returns the values of a parameter for which its test is a slow one."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


def named(*values):
    """Returns a dict from what each value is written as to the value."""
    return {str(value): value for value in values}


def case_id(case):
    """Names a case in pytest's report."""
    return ",".join(f"{option}={value}" for option, value in case.items())
