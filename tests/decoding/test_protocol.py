"""A model or a step with a wrong protocol is told what is wrong, before it compiles."""

import dataclasses
import gc
import re

import keras
import numpy as np
import pytest
from keras import ops

from keras_seqattn import decoding
from keras_seqattn.decoding import protocol
from keras_seqattn.models import LanguageModel, TranslationRNN
from tests.small import translation_model

V = 9
SOURCE = np.array([[4, 5, 2]], "int32")


class Model:
    """Counts its steps for each beam; each part of it can be exchanged."""

    start_id, end_id, pad_id = 1, 2, 0
    variables = ()

    def encode(self, source_ids):
        return source_ids

    def initial_state(self, memory, max_length, width=1):
        count = ops.zeros((ops.shape(memory)[0], width))
        return {"beam": {"count": count}, "sentence": {"ids": memory}}

    def step(self, token_ids, state, index):
        count = state["beam"]["count"] + 1.0
        logits = ops.one_hot(token_ids, V) + count[..., None]
        return logits, {"beam": {"count": count}, "sentence": state["sentence"]}


def changed(change):
    """Returns a step that changes what `Model.step` returns."""

    def step(token_ids, state, index):
        return change(*Model().step(token_ids, state, index))

    return step


def with_count(change):
    def changed_count(logits, state):
        return logits, {**state, "beam": {"count": change(state["beam"]["count"])}}

    return changed(changed_count)


STEPS = {
    "logits of rank 2": (
        changed(lambda logits, state: (logits[:, 0], state)),
        r"`{step}` must return logits of shape \(B, W, V\), here \((\d+), {W}, V\). "
        r"Received: logits.shape=\(\1, 9\).",
    ),
    "a state key dropped": (
        changed(lambda logits, state: (logits, {"beam": state["beam"]})),
        r"`{step}` must return a state of the structure, shapes and dtypes that it is "
        r"given. Received: a state without state\['sentence'\]\['ids'\].",
    ),
    "a state key more": (
        changed(lambda logits, state: (logits, {**state, "shared": ops.zeros(())})),
        r"Received: a state with state\['shared'\], which is new.",
    ),
    "a state that grows": (
        with_count(lambda count: ops.concatenate([count, count], axis=1)),
        r"Received: state\['beam'\]\['count'\].shape=\((\d+), {2W}\), "
        r"given \(\1, {W}\).",
    ),
    "another dtype": (
        with_count(lambda count: ops.cast(count, "int32")),
        r"Received: state\['beam'\]\['count'\].dtype='int32', given 'float32'.",
    ),
    "logits alone": (
        changed(lambda logits, state: logits),
        r"`{step}` must return a pair, \(logits, state\). Received: <KerasTensor",
    ),
}


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("name", STEPS)
def test_a_wrong_step_is_told_what_is_wrong(name, width):
    step, message = STEPS[name]
    method = decoding.BeamSearch(width=width) if width > 1 else None
    message = message.replace("{W}", str(width)).replace("{2W}", str(2 * width))
    count = np.zeros((2, width), "float32")
    state = {"beam": {"count": count}, "sentence": {"ids": np.ones((2, 3), "int32")}}
    with pytest.raises(ValueError, match=message.replace("{step}", "step")):
        decoding.search(step, state, batch_size=2, max_length=4, method=method)
    model = Model()
    model.step = step
    with pytest.raises(ValueError, match=message.replace("{step}", "model.step")):
        decoding.generate(model, SOURCE, method)


STATES = {
    "no beams": (
        {"beam": {"count": np.zeros(2)}, "sentence": {}},
        "tensors of shape (B, W, ...), here (2, 3, ...), under 'beam'. "
        "Received: state['beam']['count'].shape=(2,).",
    ),
    "other beams": (
        {"beam": [np.zeros((2, 4))], "sentence": {}},
        "tensors of shape (B, W, ...), here (2, 3, ...), under 'beam'. "
        "Received: state['beam'][0].shape=(2, 4).",
    ),
    "another batch": (
        {"beam": {}, "sentence": {"ids": np.zeros((3, 2))}},
        "tensors of shape (B, ...), here (2, ...), under 'sentence'. "
        "Received: state['sentence']['ids'].shape=(3, 2).",
    ),
    "no part for beams": (
        {"sentence": {}},
        "a part 'beam', in a dict. Received: {'sentence': {}}.",
    ),
}


@pytest.mark.parametrize("name", STATES)
def test_a_wrong_state_is_told_what_is_wrong(name):
    state, message = STATES[name]
    method = decoding.BeamSearch(width=3)
    with pytest.raises(ValueError, match=re.escape(f"`state` must have {message}")):
        decoding.search(Model().step, state, batch_size=2, max_length=4, method=method)
    model = Model()
    model.initial_state = lambda memory, max_length, width: state
    model.step = lambda token_ids, state, index: (ops.zeros((2, 3, V)), state)
    message = re.escape(f"`model.initial_state` must return {message}")
    with pytest.raises(ValueError, match=message):
        protocol.check_model(model, (2, 4), max_length=4, width=3)


COVERED = {
    "nothing": ({}, {}, r"\['coverage'\].shape=None and .*\['mask'\].shape=None"),
    "no mask": (
        {"coverage": np.zeros((2, 3, 4))},
        {},
        r"\['coverage'\].shape=\(2, 3, 4\) and .*\['mask'\].shape=None",
    ),
    "another length": (
        {"coverage": np.zeros((2, 3, 4))},
        {"mask": np.ones((2, 5), bool)},
        r"\['coverage'\].shape=\(2, 3, 4\) and .*\['mask'\].shape=\(2, 5\)",
    ),
}


@pytest.mark.parametrize("name", COVERED)
def test_coverage_needs_a_state_that_counts_it(name):
    beam, sentence, received = COVERED[name]
    state = {"beam": beam, "sentence": sentence}
    method = decoding.BeamSearch(width=3, coverage_penalty=0.1)
    message = (
        r" state\['beam'\]\['coverage'\] of shape \(B, W, S\) and "
        r"state\['sentence'\]\['mask'\] of shape \(B, S\) for a search with a "
        rf"`coverage_penalty`. Received: state\['beam'\]{received}"
    )
    with pytest.raises(ValueError, match="`state` must have" + message):
        decoding.search(Model().step, state, batch_size=2, max_length=4, method=method)
    model = Model()
    model.initial_state = lambda memory, max_length, width, coverage: state
    with pytest.raises(ValueError, match="`model.initial_state` must return" + message):
        protocol.check_model(model, (2, 4), max_length=4, width=3, coverage=True)


def test_none_is_no_tensor():
    state = {"beam": {}, "sentence": {"mask": None}}
    message = r" tensors alone. Received: state\['sentence'\]\['mask'\]=None"
    with pytest.raises(ValueError, match="`state` must have" + message):
        decoding.search(Model().step, state, batch_size=2, max_length=4)
    model = Model()
    model.initial_state = lambda memory, max_length, width: state
    with pytest.raises(ValueError, match="`model.initial_state` must return" + message):
        decoding.generate(model, SOURCE)
    model = Model()
    model.step = changed(lambda logits, _: (logits, state))
    with pytest.raises(ValueError, match="`model.step` must return" + message):
        decoding.generate(model, SOURCE)


def with_grown(change):
    return lambda state: {**state, "beam": {"count": change(state["beam"]["count"])}}


GROWN = {
    "a state key dropped": (
        lambda state: {"beam": state["beam"]},
        "a state of the structure and dtypes that it is given. "
        "Received: a state without state['sentence']['ids'].",
    ),
    "another dtype": (
        with_grown(lambda count: ops.cast(count, "int32")),
        "a state of the structure and dtypes that it is given. "
        "Received: state['beam']['count'].dtype='int32', given 'float32'.",
    ),
    "more beams": (
        with_grown(lambda count: ops.concatenate([count, count], axis=1)),
        "tensors of shape (B, W, ...), here (2, 3, ...), under 'beam'. "
        "Received: state['beam']['count'].shape=(2, 6).",
    ),
}


@pytest.mark.parametrize("name", GROWN)
def test_a_wrong_growth_is_told_what_is_wrong(name):
    change, message = GROWN[name]
    model = Model()
    model.grow_state = lambda state, max_length, index: change(state)
    message = re.escape(f"`model.grow_state` must return {message}")
    with pytest.raises(ValueError, match=message):
        protocol.check_model(model, (2, 4), max_length=4, width=3)


def test_a_state_may_grow_by_any_length():
    class Long(Model):
        def initial_state(self, memory, max_length, width=1):
            state = super().initial_state(memory, max_length, width)
            places = ops.zeros((ops.shape(memory)[0], 2 * max_length))
            return {**state, "sentence": {"ids": memory, "places": places}}

        def grow_state(self, state, max_length, index):
            places = ops.zeros((state["sentence"]["ids"].shape[0], max_length))
            return {**state, "sentence": {**state["sentence"], "places": places}}

    assert protocol.check_model(Long(), (2, 4), max_length=4, width=3) == V


@pytest.mark.parametrize("name", ["encode", "initial_state", "step"])
def test_a_method_must_be_there(name):
    model = Model()
    setattr(model, name, None)
    with pytest.raises(ValueError, match=rf"`model.{name}` must be a .*=None"):
        decoding.generate(model, SOURCE)


@pytest.mark.parametrize("name", ["variables", "start_id"])
def test_an_attribute_must_be_there(name):
    part = getattr(Model, name)
    delattr(Model, name)
    try:
        with pytest.raises(ValueError, match=f"`model` must be .*`{name}`.*Received: "):
            decoding.generate(Model(), SOURCE)
    finally:
        setattr(Model, name, part)


def test_an_error_of_the_model_s_own_is_raised_unchanged():
    model = Model()
    model.step = changed(lambda logits, state: {}["nothing"])
    with pytest.raises(KeyError, match="^'nothing'"):
        decoding.generate(model, SOURCE)


def test_a_model_is_checked_once_for_a_width():
    model, calls = Model(), []

    def encode(source_ids):
        calls.append(source_ids.shape)
        return source_ids

    model.encode = encode
    for _ in range(2):
        protocol.check_model(model, (2, 4), max_length=4, width=1)
    once = len(calls)
    protocol.check_model(model, (2, 4), max_length=4, width=2)
    assert len(calls) == 2 * once > 0


@dataclasses.dataclass
class Says(Model):
    """Says one token only. Instances are equal, and cannot be hashed."""

    token: int = dataclasses.field(compare=False)

    def step(self, token_ids, state, index):
        logits, state = super().step(token_ids, state, index)
        return logits + 9.0 * ops.one_hot(self.token, V), state


@pytest.mark.slow_on("tensorflow", "jax")
def test_models_that_are_equal_have_programs_of_their_own():
    one, other = Says(4), Says(5)
    assert one == other
    for model in (one, other):
        found = decoding.generate(model, SOURCE, max_length=2)
        assert found.sequence(0) == [model.token] * 2
        assert decoding.compile_report(model).num_programs == 1
    numbers = {id(one), id(other)}
    assert numbers <= protocol._CHECKED._values.keys()
    del one, other, model
    gc.collect()
    assert not numbers & protocol._CHECKED._values.keys()


@pytest.mark.slow_on("tensorflow", "jax")
def test_one_beam_needs_nothing_that_is_reordered():
    def step(token_ids, state, index):
        return ops.one_hot(ops.where(index < 2, 5, 2), V)[None, None] * 9.0, state

    given = {"batch_size": 1, "max_length": 4}
    greedy = decoding.search(step, {"sentence": {}}, **given)
    beams = decoding.BeamSearch(width=1, length_penalty=0.0)
    found = decoding.search(step, {"sentence": {}}, method=beams, **given)
    assert found.sequence(0) == greedy.sequence(0) == [5, 5]
    np.testing.assert_allclose(found.scores, greedy.scores, rtol=1e-6)


@pytest.mark.slow_on("tensorflow")
@pytest.mark.parametrize("width", [1, 4])
def test_our_models_have_the_protocol(width):
    sizes = {"model_dim": 8, "intermediate_dim": 8, "num_heads": 2}
    for model, coverage in (
        (translation_model(V), True),
        (LanguageModel(V, num_layers=1, **sizes), False),
        (TranslationRNN(V, model_dim=8), True),
    ):
        protocol.check_model(model, (2, 8), max_length=8, width=width)
        before = [keras.ops.convert_to_numpy(v) for v in model.variables]
        protocol.check_model(model, (4, 8), 8, width + 1, coverage)
        for x, v in zip(before, model.variables, strict=True):
            np.testing.assert_array_equal(x, v)
