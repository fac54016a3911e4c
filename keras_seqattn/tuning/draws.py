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


def perturb(
    center: dict[str, Any],
    hyperparameters: keras_tuner.HyperParameters,
    failures: int,
    random: Random | None,
) -> dict[str, Any]:
    """Returns active values near `center`: one or more of them are a step away.

    `failures` is the number of draws since the last new best: the more there are, the
    more values change, and the further. Without `random` none changes.
    `hyperparameters` are those of the whole space.
    """
    width = WIDTH * (1 + failures / WIDENING)
    more = min(MOST_CHANGED, CHANGED * (1 + failures / WIDENING))
    drawn = keras_tuner.HyperParameters()
    free = []
    for hp in hyperparameters.space:
        drawn.merge([hp])
        drawn.values[hp.name] = center.get(hp.name, hp.default)
        # An integer hyperparameter's `values` are a generator.
        several = len([*itertools.islice(hp.values, 2)]) > 1
        if drawn.is_active(hp) and several:
            free.append(hp)
    count = 0 if random is None else 1
    while count and random.random() < more:
        count += 1
    for hp in random.sample(free, min(count, len(free))) if count else ():
        drawn.values[hp.name] = _another(hp, drawn.values[hp.name], width, random)
    return _active_values(drawn, hyperparameters)


def sample(
    hyperparameters: keras_tuner.HyperParameters, random: Random
) -> dict[str, Any]:
    """Returns active values drawn independently from the whole space."""
    drawn = keras_tuner.HyperParameters()
    for hp in hyperparameters.space:
        drawn.merge([hp])
        drawn.values[hp.name] = hp.random_sample(random.randrange(2**31))
    return _active_values(drawn, hyperparameters)


def _active_values(drawn, hyperparameters):
    active = [hp.name for hp in hyperparameters.space if drawn.is_active(hp)]
    return {name: drawn.values[name] for name in active}


def regularize(
    values: dict[str, Any], hyperparameters: keras_tuner.HyperParameters
) -> dict[str, Any]:
    """Returns values that regularize more, halfway to the largest possible.

    They are unchanged where they are the largest, or where nothing regularizes.
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
