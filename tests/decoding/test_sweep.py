"""One search for several length penalties finds what the search of each finds."""

import dataclasses

import numpy as np
import pytest

from keras_seqattn import decoding
from keras_seqattn.decoding.sweep import BeamSweep
from tests.decoding.test_search import END, V, chained, search
from tests.pairs import each_variant

PENALTIES = (0.0, 0.6, 1.0, 1.4, 2.0)
OPTIONS = {
    "length": {"width": 4},
    "gnmt": {"width": 3, "penalty": "gnmt"},
    "one beam": {"width": 1},
    "patience": {"width": 3, "patience": 1.0},
    "processors": {
        "width": 3,
        "min_length": 2,
        "repetition_penalty": 1.4,
        "banned_ids": (5,),
        "stop_ids": (6,),
    },
}


def table(seed=0, count=24):
    """Tables of which some sentences end soon, and some late."""
    logits = np.random.default_rng(seed).normal(0, 1.5, (count, V, V))
    logits[..., END] += np.linspace(-3, 2, count)[:, None]
    return logits.astype("float32")


@each_variant("options", OPTIONS, on_jax=[], on_tensorflow=[])
def test_each_penalty_has_what_its_own_search_finds(options):
    logits, width = table(), options["width"]
    sweep = BeamSweep(**options, length_penalties=PENALTIES)
    found = search(chained(logits, width), len(logits), 9, method=sweep)
    for number, own in enumerate(sweep.searches()):
        assert own == decoding.BeamSearch(**options, length_penalty=PENALTIES[number])
        expected = search(chained(logits, width), len(logits), 9, method=own)
        np.testing.assert_array_equal(
            found.token_ids[:, number], expected.token_ids[:, 0]
        )
        np.testing.assert_array_equal(found.scores[:, number], expected.scores[:, 0])


@pytest.mark.backends("torch")
def test_the_penalties_find_different_translations():
    """So the test above can fail."""
    logits = table()
    sweep = BeamSweep(width=4, length_penalties=PENALTIES)
    found = search(chained(logits, 4), len(logits), 9, method=sweep)
    different = (found.token_ids != found.token_ids[:, :1]).any(axis=(1, 2))
    assert 3 < different.sum() and len(set(found.lengths.ravel())) > 3


@pytest.mark.backends("torch")
def test_it_ends_no_later_than_its_slowest_search():
    logits, steps = table(), {}

    def counted(method):
        step, state = chained(logits, 3)
        steps[method] = 0

        def counting(*given):
            steps[method] += 1
            return step(*given)

        search((counting, state), len(logits), 9, method=method)

    sweep = BeamSweep(width=3, length_penalties=PENALTIES)
    for method in (sweep, *sweep.searches()):
        counted(method)
    assert steps.pop(sweep) == max(steps.values())


def test_it_is_a_search_with_a_configuration():
    sweep = BeamSweep(width=2, length_penalties=(0.5, 1.0))
    assert BeamSweep(**sweep.get_config()) == sweep
    with pytest.raises(ValueError, match="`lenght_penalties` must be an argument"):
        BeamSweep(lenght_penalties=(1.0,))
    assert dataclasses.replace(sweep, width=3).length_penalties == (0.5, 1.0)
