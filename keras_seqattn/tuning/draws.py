"""How a trial's hyperparameters are chosen: near the best, or regularizing more."""

import itertools
from random import Random
from typing import Any

import keras_tuner

# A draw moves a hyperparameter by a normal step with the standard deviation WIDTH, a
# share of its range. After each, one more moves with the probability CHANGED. Both are
# twice as large, CHANGED up to MOST_CHANGED, after WIDENING draws without a new best.
WIDTH, CHANGED, MOST_CHANGED, WIDENING = 0.25, 0.35, 0.8, 12
MOST_GUESSES = 20  # tries to draw a different value
# Name endings of hyperparameters that regularize more the larger they are.
REGULARIZERS = ("dropout", "dropout_rate", "smoothing", "decay")


def defaults(hyperparameters: keras_tuner.HyperParameters) -> dict[str, Any]:
    """Returns the active values by default."""
    values = {hp.name: hp.default for hp in hyperparameters.space}
    return _active_values(values, hyperparameters)


def perturb(
    center: dict[str, Any],
    hyperparameters: keras_tuner.HyperParameters,
    failures: int,
    random: Random,
) -> dict[str, Any]:
    """Returns active values near `center`: one or more of them are a step away.

    `failures` is how many trials and refused draws came since the last new best: the
    more there are, the more values change, and the further. `hyperparameters` are those
    of the whole space.
    """
    width = WIDTH * (1 + failures / WIDENING)
    more = min(MOST_CHANGED, CHANGED * (1 + failures / WIDENING))
    space = hyperparameters.space
    values = {hp.name: center.get(hp.name, hp.default) for hp in space}
    known = hyperparameters_of(values)
    # An integer hyperparameter's `values` are a generator.
    several = [hp for hp in space if len([*itertools.islice(hp.values, 2)]) > 1]
    free = [hp for hp in several if known.is_active(hp)]
    count = 1
    while random.random() < more:
        count += 1
    for hp in random.sample(free, min(count, len(free))):
        values[hp.name] = _another(hp, values[hp.name], width, random)
    return _active_values(values, hyperparameters)


def sample(
    hyperparameters: keras_tuner.HyperParameters, random: Random
) -> dict[str, Any]:
    """Returns active values drawn independently from the whole space."""
    values = {
        hp.name: hp.random_sample(random.randrange(2**31))
        for hp in hyperparameters.space
    }
    return _active_values(values, hyperparameters)


def _active_values(values, hyperparameters):
    known = hyperparameters_of(values)
    active = [hp.name for hp in hyperparameters.space if known.is_active(hp)]
    return {name: values[name] for name in active}


def regularize(
    values: dict[str, Any], hyperparameters: keras_tuner.HyperParameters
) -> dict[str, Any]:
    """Returns values that regularize more, halfway to the largest possible.

    Of the larger choices it is the middle one, or of two in the middle the larger. They
    are unchanged where they are the largest, or where nothing regularizes.
    """
    values = dict(values)
    for hp in hyperparameters.space:
        value = values.get(hp.name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not hp.name.endswith(REGULARIZERS) or not is_number:
            continue
        if isinstance(hp, keras_tuner.engine.hyperparameters.Choice):
            more = sorted(other for other in hp.values if other > value)
            values[hp.name] = more[len(more) // 2] if more else value
        else:
            place = (1 + hp.value_to_prob(value)) / 2
            values[hp.name] = max(value, hp.prob_to_value(place))
    return values


def hyperparameters_of(values: dict[str, Any]) -> keras_tuner.HyperParameters:
    """Returns KerasTuner's object with these values, which declares nothing."""
    hp = keras_tuner.HyperParameters()
    hp.values = dict(values)
    return hp


def _another(hp, value, width, random):
    """Returns a different value of a hyperparameter; a number moves to one nearby."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    for _ in range(MOST_GUESSES if is_number else 0):
        place = abs(hp.value_to_prob(value) + random.gauss(0.0, width))
        # A step past an end of the range is reflected.
        guess = hp.prob_to_value(
            min(max(2 - place, 0.0), 0.999) if place > 1 else place
        )
        if guess != value:
            return guess
    return random.choice([one for one in hp.values if one != value])
