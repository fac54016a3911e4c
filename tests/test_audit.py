"""An audit finds each planted leak, names it, and raises no false alarm."""

import re

import keras
import numpy as np
import pytest
from keras import ops

from keras_seqattn import audit, layers
from keras_seqattn.audit.passes import differs, random_content
from keras_seqattn.backend.parts import layers_of
from tests.small import translation_model

V, D, L = 11, 8, 5
IDS = np.array([[1, 5, 7, 3, 2], [1, 4, 2, 0, 0]], "int32")
LONGER = np.array([[6, 5, 2, 0, 0, 0], [4, 5, 6, 7, 8, 2]], "int32")
PAIR = {"source_ids": LONGER, "target_ids": IDS}
CAUSAL = np.tril(np.ones((L, L), bool))


class Mixer(keras.layers.Layer):
    """Mixes positions by a mask `(L, L)`, in training by another where there is one."""

    def __init__(self, mask, training_mask=None, dropout=0.0, **kwargs):
        super().__init__(**kwargs)
        self.masks = (mask, mask if training_mask is None else training_mask)
        self.dropout_layer = keras.layers.Dropout(dropout, seed=1)

    def call(self, x, training=None):
        x = self.dropout_layer(x, training=training)
        return ops.tanh(ops.matmul(self.masks[bool(training)].astype("float32"), x))

    def compute_output_shape(self, shape):
        return shape


class Apply(keras.layers.Layer):
    """Applies a function."""

    def __init__(self, function, **kwargs):
        super().__init__(**kwargs)
        self.function = function

    def call(self, inputs):
        return self.function(inputs)


class Reader(keras.Model):
    """A subclassed model that reads a list or a dict of two ids."""

    def __init__(self, first, second):
        super().__init__()
        self.table = keras.layers.Embedding(V, D)
        self.first, self.second = first, second

    def call(self, inputs):
        a, b = inputs.values() if isinstance(inputs, dict) else inputs
        return {"sum": self.first(self.table(a)) + self.second(self.table(b))}


def embedded(*after, **options):
    """A functional model of token ids: a table, then layers."""
    ids = keras.Input((None,), dtype="int32", name="ids")
    x = keras.layers.Embedding(V, D, **options)(ids)
    for layer in after:
        x = layer(x)
    return keras.Model(ids, x)


def attentive(dropout=0.0, mask_zero=True, **call):
    """A functional model of one attention by Keras itself."""
    ids = keras.Input((None,), dtype="int32", name="ids")
    x = keras.layers.Embedding(V, D, mask_zero=mask_zero)(ids)
    attention = keras.layers.MultiHeadAttention(2, 4, dropout=dropout)
    return keras.Model(ids, attention(x, x, **call))


def translator(**options):
    return translation_model(V, intermediate_dim=12, **options)


def also(mask, query, key):
    """A mask with one more key for a query."""
    mask = mask.copy()
    mask[query, key] = True
    return mask


# Right models pass.


@pytest.mark.parametrize(
    "policy",
    [
        pytest.param("float32", marks=pytest.mark.slow_on("tensorflow", "jax")),
        pytest.param("mixed_bfloat16", marks=pytest.mark.slow),
        pytest.param("mixed_float16", marks=pytest.mark.slow),
    ],
)
def test_the_translation_model_passes(policy):
    keras.config.set_dtype_policy(policy)
    model = translator(dropout=0.3, attention_dropout=0.1)
    report = audit.check_causality(model, PAIR, num_draws=1)
    assert report == (True, None, None, report.message)
    assert "'target_ids', in inference or in training" in report.message
    assert report.raise_if_failed() is report
    report = audit.check_padding_invariance(model, PAIR, num_draws=1)
    assert report.ok, report.message
    for name in PAIR:
        for compared in ("amount", "content"):
            expected = f"the {compared} of padding in {name!r} in inference"
            assert expected in report.message
        assert f"the content of padding in {name!r} in training" in report.message
    assert "amount of padding in 'target_ids' in training" not in report.message


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.slow_on("jax")
def test_a_model_of_keras_s_layers_passes(policy):
    keras.config.set_dtype_policy(policy)
    model = attentive(dropout=0.2, use_causal_mask=True)
    assert audit.check_causality(model, IDS, num_draws=1).ok
    assert audit.check_padding_invariance(model, IDS, num_draws=1).ok


@pytest.mark.backends("torch")
@pytest.mark.filterwarnings("error:The structure of `inputs`")
def test_inputs_by_name_fit_a_model_of_another_structure():
    one = keras.Input((None, 2), name="a")
    given = {"a": np.ones((2, 3, 2), "float32")}
    assert audit.check_causality(keras.Model(one, 2 * one), given, which="a").ok


def test_a_recurrent_model_passes():
    model = embedded(keras.layers.GRU(D, return_sequences=True), mask_zero=True)
    assert audit.check_causality(model, IDS, num_draws=1, training=False).ok
    assert audit.check_padding_invariance(model, IDS, num_draws=1, training=True).ok


@pytest.mark.backends("tensorflow", "torch")
def test_a_model_of_floats_passes(rng):
    x = keras.Input((None, D))
    attention = layers.MultiHeadAttention(2, 4, dropout=0.2, sliding_window=2)
    model = keras.Model(x, attention(x, x, use_causal_mask=True))
    assert audit.check_causality(model, rng.normal(size=(2, L, D)), num_draws=1).ok


def test_one_float_input_of_several_is_audited_alone(rng):
    x, y = keras.Input((None, D), name="x"), keras.Input((None, D), name="y")
    causal = keras.layers.Conv1D(D, 2, padding="causal")(x)
    model = keras.Model([x, y], causal + keras.layers.Dense(D)(y))
    arrays = list(rng.normal(size=(2, 1, 3, D)))
    assert audit.check_causality(model, arrays, "x", num_draws=1, training=False).ok


def test_without_a_name_the_only_input_is_audited():
    model = embedded(Mixer(CAUSAL))
    report = audit.check_causality(model, IDS, which=None, num_draws=1, training=False)
    assert report.ok and "'ids'" in report.message


@pytest.mark.backends("torch")
def test_an_input_of_bools_is_audited():
    x = keras.Input((None,), dtype="bool", name="x")
    model = keras.Model(x, Apply(lambda x: ops.cumsum(ops.cast(x, "int32"), 1))(x))
    assert audit.check_causality(model, IDS > 0, num_draws=1).ok


@pytest.mark.backends("torch")
def test_each_input_gets_ids_of_its_own_vocabulary():
    model = translator(target_vocabulary_size=6)
    inputs = {**PAIR, "target_ids": np.minimum(IDS, 5)}
    options = {"num_draws": 5, "training": False}
    assert audit.check_causality(model, inputs, **options).ok


def test_a_banned_logit_and_a_nan_are_no_alarm():
    ban = np.array([-1e9, -np.inf, np.nan] + [0.0] * (D - 3), "float32")
    model = embedded(Mixer(CAUSAL), Apply(lambda x: ops.add(x, ban)))
    assert audit.check_causality(model, IDS, num_draws=1).ok


# Leaks into earlier positions.


@pytest.mark.parametrize(
    ("mask", "position", "source"),
    [
        (np.ones((L, L), bool), 0, 1),
        (np.tril(np.ones((L, L), bool), 1), 0, 1),
        (also(CAUSAL, 2, 4), 2, 4),
        (also(CAUSAL, 3, 4), 3, 4),
        (also(also(CAUSAL, 0, 4), 1, 2), 0, 4),
    ],
    ids=["no mask", "off by one", "one key", "the last key", "two keys"],
)
@pytest.mark.parametrize("kind", ["ids", "floats"])
def test_a_broken_causal_mask_is_found(rng, mask, position, source, kind):
    if kind == "ids":
        model, inputs, name = embedded(Mixer(mask)), IDS, "ids"
    else:
        x = keras.Input((L, D), name="x")
        model, inputs = keras.Model(x, Mixer(mask)(x)), rng.normal(size=(1, L, D))
        name = "x"
    report = audit.check_causality(model, inputs)
    assert (report.ok, report.position, report.input) == (False, position, name)
    message = f"Output position {position} depends on position {source} of '{name}'"
    assert message in report.message
    with pytest.raises(AssertionError, match=re.escape(message)):
        report.raise_if_failed()


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_a_mask_applied_at_inference_only_is_found(dropout):
    model = embedded(Mixer(CAUSAL, also(CAUSAL, 1, 3), dropout))
    assert audit.check_causality(model, IDS, training=False).ok
    for training in (None, True):
        report = audit.check_causality(model, IDS, training=training)
        assert (report.ok, report.position) == (False, 1)
        assert report.message.endswith("in training.")


@pytest.mark.backends("tensorflow", "torch")
def test_a_leak_of_dropout_s_path_alone_is_found():
    """As of a kernel that is taken where weights are dropped, and forgets its mask."""

    class Forgetful(layers.MultiHeadAttention):
        def call(self, query, value, key=None, training=None, use_causal_mask=False):
            use_causal_mask &= not (training and self.dropout)
            options = {"training": training, "use_causal_mask": use_causal_mask}
            return super().call(query, value, key, **options)

    for dropout, ok in ((0.0, True), (0.3, False)):
        x = keras.Input((None, D))
        layer = Forgetful(2, 4, dropout=dropout)
        model = keras.Model(x, layer(x, x, use_causal_mask=True))
        inputs = np.random.default_rng(0).normal(size=(2, 4, D))
        report = audit.check_causality(model, inputs, num_draws=1)
        assert report.ok is ok
        assert ok or (report.position == 0 and "in training" in report.message)


def test_a_batch_norm_over_positions_is_a_leak_in_training():
    norm = keras.layers.BatchNormalization()
    model = embedded(norm)
    assert audit.check_causality(model, IDS, training=False).ok
    assert not audit.check_causality(model, IDS).ok


@pytest.mark.parametrize("inputs", ["list", "dict"])
def test_a_leak_in_one_of_several_inputs_is_found(inputs):
    model = Reader(Mixer(CAUSAL), Mixer(also(CAUSAL, 1, 4)))
    names = ["0", "1"] if inputs == "list" else ["a", "b"]
    arrays = [IDS, IDS + 1] if inputs == "list" else {"a": IDS, "b": IDS + 1}
    assert audit.check_causality(model, arrays, names[0]).ok
    report = audit.check_causality(model, arrays, names)
    assert (report.ok, report.position, report.input) == (False, 1, names[1])


@pytest.mark.backends("tensorflow", "torch")
def test_the_encoder_is_seen_whole():
    """A translation model may look ahead in the source, and does."""
    report = audit.check_causality(
        translator(), {**PAIR, "source_ids": IDS}, "source_ids", training=False
    )
    assert (report.ok, report.position, report.input) == (False, 0, "source_ids")


@pytest.mark.parametrize(
    "leak",
    [
        lambda ids: ops.any(ops.equal(ids, 0), axis=1, keepdims=True),
        lambda ids: ops.equal(ids[:, -1:], 9),
        lambda ids: ops.all(ops.equal(ids[:, 1:], 0), axis=1, keepdims=True),
    ],
    ids=["whether there is padding", "one token of eleven", "padding alone"],
)
def test_what_few_tokens_show_is_found(leak):
    ids = keras.Input((L,), dtype="int32", name="ids")
    x = keras.layers.Embedding(V, D)(ids)
    leaked = Apply(lambda ids: ops.cast(leak(ids), "float32"))(ids)
    model = keras.Model(ids, x + ops.expand_dims(leaked, -1))
    report = audit.check_causality(model, IDS[:1], num_draws=30, training=False)
    assert (report.ok, report.position) == (False, 0)


def test_gradients_and_replacements_find_what_the_other_misses(monkeypatch, rng):
    x = keras.Input((L, D))
    array = rng.normal(size=(1, L, D))
    smooth = keras.Model(x, Mixer(also(CAUSAL, 1, 2))(x))
    hidden = Mixer(also(CAUSAL, 1, 2))(Apply(ops.stop_gradient)(x))
    stopped = keras.Model(x, hidden + x)
    assert audit.check_causality(stopped, array).position == 1
    with monkeypatch.context() as patch:
        probe = audit.causality._Probe
        patch.setattr(probe, "_changes", lambda self, span, cut: False)
        report = audit.check_causality(smooth, array)
        assert "Output position 1 depends on position 2 of" in report.message
        with pytest.raises(ValueError, match="`model` must depend on"):
            audit.check_causality(stopped, array)


@pytest.mark.backends("torch")
def test_what_is_within_the_tolerance_is_no_leak():
    model = embedded(Mixer(np.where(CAUSAL, 1.0, 1e-3)))
    options = {"num_draws": 1, "training": False}
    assert not audit.check_causality(model, IDS, **options).ok
    assert not audit.check_causality(model, IDS, tolerance=1e-4, **options).ok
    assert audit.check_causality(model, IDS, tolerance=0.1, **options).ok


@pytest.mark.backends("torch")
def test_what_is_within_the_tolerance_is_no_leak_of_padding():
    leak = Apply(lambda x: x + 1e-3 * ops.mean(x, axis=1, keepdims=True))
    model, options = embedded(leak), {"num_draws": 1, "training": False}
    assert not audit.check_padding_invariance(model, IDS, **options).ok
    assert audit.check_padding_invariance(model, IDS, tolerance=0.1, **options).ok


def test_only_what_is_selected_is_audited():
    ids = keras.Input((L,), dtype="int32")
    x = keras.layers.Embedding(V, D)(ids)
    outputs = {"good": Mixer(CAUSAL)(x), "bad": Mixer(np.ones((L, L)))(x)}
    model = keras.Model(ids, outputs)
    assert not audit.check_causality(model, IDS).ok
    assert audit.check_causality(model, IDS, select=lambda given: given["good"]).ok


# Leaks of padding.


@pytest.mark.slow_on("jax")
def test_padding_that_is_attended_to_is_found():
    report = audit.check_padding_invariance(attentive(mask_zero=False), IDS)
    assert (report.ok, report.position, report.input) == (False, 0, "ids")
    assert "depends on the amount of padding in 'ids' in inference" in report.message


@pytest.mark.slow_on("jax")
def test_padding_that_is_attended_to_in_training_is_found():
    """With dropout, when no two lengths can be compared: by its content."""

    class Forgetful(layers.MultiHeadAttention):
        def call(self, query, value, key=None, value_mask=None, training=None):
            options = {"value_mask": None if training else value_mask}
            return super().call(query, value, key, training=training, **options)

    ids = keras.Input((None,), dtype="int32", name="ids")
    x = keras.layers.Embedding(V, D, mask_zero=True)(ids)
    query = keras.layers.Embedding(V, D)(ids)
    model = keras.Model(ids, Forgetful(2, 4, dropout=0.2)(query, x))
    assert audit.check_padding_invariance(model, IDS, training=False).ok
    report = audit.check_padding_invariance(model, IDS)
    assert (report.ok, report.position) == (False, 0)
    assert "the content of padding in 'ids' in training" in report.message


def test_the_source_s_padding_is_told_from_the_target_s():
    class Leaky(keras.layers.Layer):
        def call(self, source_ids):
            return ops.cast(ops.shape(source_ids)[1], "float32")

    source = keras.Input((None,), dtype="int32", name="source_ids")
    target = keras.Input((None,), dtype="int32", name="target_ids")
    x = keras.layers.Embedding(V, D)(target) + Leaky()(source)
    model = keras.Model({"source_ids": source, "target_ids": target}, x)
    assert audit.check_padding_invariance(model, PAIR, "target_ids").ok
    report = audit.check_padding_invariance(model, PAIR)
    assert (report.ok, report.position, report.input) == (False, 0, "source_ids")


def pooled(right):
    """A model (floats, mask) -> one vector, that counts real positions, or all."""
    x, mask = keras.Input((None, D), name="x"), keras.Input((None,), name="mask")
    kept = Apply(lambda given: given[0] * given[1][..., None])((x, mask))
    mean = Apply(lambda given: ops.mean(given, axis=1))
    if right:
        total = Apply(lambda given: ops.sum(given, axis=1))
        return keras.Model([x, mask], total(kept))
    return keras.Model([x, mask], mean(kept))


def test_a_mask_of_its_own_input_is_heeded(rng):
    inputs = [rng.normal(size=(2, L, D)), (IDS != 0).astype("float32")]
    masks = {"x": "mask"}
    assert audit.check_padding_invariance(pooled(True), inputs, masks=masks).ok
    report = audit.check_padding_invariance(pooled(False), inputs, masks=masks)
    assert (report.ok, report.position, report.input) == (False, None, "x")
    assert report.message.startswith("The output depends on the amount of padding")
    x, mask = keras.Input((L, D), name="x"), keras.Input((L,), name="mask")
    backward = Apply(lambda given: ops.cumsum(ops.flip(given[0], 1), axis=1))
    unmasked = keras.Model([x, mask], backward((x, mask)))
    report = audit.check_padding_invariance(unmasked, inputs, masks=masks, extra=0)
    assert (report.ok, report.position, report.input) == (False, 0, "x")
    assert "the content of padding in 'x' in inference" in report.message


def test_positions_behind_strides_are_selected():
    ids = keras.Input((4,), dtype="int32", name="ids")
    x = keras.layers.Embedding(V, D)(ids)
    model = keras.Model(ids, keras.layers.Conv1D(3, 2, strides=2)(x))
    given = np.array([[5, 3, 0, 0], [4, 6, 0, 0]], "int32")
    report = audit.check_padding_invariance(model, given, extra=0)
    assert (report.ok, report.position) == (False, None)
    assert "`select=lambda y: y[:, :real]`" in report.message
    assert audit.check_padding_invariance(
        model, given, extra=0, select=lambda y: y[:, :1]
    ).ok


@pytest.mark.parametrize("right", [True, False])
def test_what_is_selected_may_be_one_number(rng, right):
    inputs = [rng.normal(size=(2, L, D)), (IDS != 0).astype("float32")]
    report = audit.check_padding_invariance(
        pooled(right), inputs, masks={"x": "mask"}, select=ops.max
    )
    assert (report.ok, report.position) == (right, None)


@pytest.mark.backends("torch")
def test_padding_is_the_given_id_or_the_model_s():
    given = np.where(IDS == 0, V - 1, IDS)
    ids = keras.Input((None,), dtype="int32", name="ids")
    real = Apply(lambda ids: ops.cast(ids != V - 1, "float32")[..., None])(ids)
    total = Apply(lambda x: ops.sum(x, axis=1))
    model = keras.Model(ids, total(keras.layers.Embedding(V, D)(ids) * real))
    assert not audit.check_padding_invariance(model, given).ok
    assert audit.check_padding_invariance(model, given, pad_id=V - 1).ok
    model.pad_id = V - 1
    assert audit.check_padding_invariance(model, given).ok
    assert not audit.check_padding_invariance(model, given, pad_id=0).ok


@pytest.mark.backends("torch")
def test_what_few_tokens_show_is_found_in_padding_too():
    """In a model without a table, of which the vocabulary must be given."""
    ids, mask = (keras.Input((L,), dtype="int32", name=name) for name in ("ids", "m"))
    leak = Apply(lambda given: given[0] * given[1] + ops.any(given[0] == 8))
    model = keras.Model([ids, mask], leak((ids, mask)))
    options = {"masks": {"ids": "m"}, "vocabulary_size": V, "extra": 0}
    inputs = [IDS, IDS > 0]
    report = audit.check_padding_invariance(model, inputs, num_draws=30, **options)
    assert (report.ok, report.position) == (False, 0)
    right = Apply(lambda given: given[0] * given[1])
    model = keras.Model([ids, mask], right((ids, mask)))
    assert audit.check_padding_invariance(model, inputs, **options).ok


@pytest.mark.backends("torch")
def test_the_content_of_padding_is_found_behind_a_quantized_table():
    model = embedded(Apply(lambda x: ops.mean(x, axis=1)))
    for quantized in (False, True):
        if quantized:
            model.layers[1].quantize("int8")
        report = audit.check_padding_invariance(model, IDS, extra=0, training=False)
        assert "depends on the content of padding in 'ids'" in report.message
        assert not report.ok


@pytest.mark.backends("torch")
def test_an_amount_that_counts_in_training_alone_is_found():
    class Averaged(keras.layers.Layer):
        def call(self, x, training=None):
            return x / ops.shape(x)[1] if training else x

    model = embedded(Averaged())
    assert audit.check_padding_invariance(model, IDS, training=False).ok
    report = audit.check_padding_invariance(model, IDS)
    assert (report.ok, report.position, report.input) == (False, 0, "ids")
    assert "the amount of padding in 'ids' in training" in report.message


@pytest.mark.backends("torch")
def test_inputs_of_the_same_positions_are_lengthened_together(rng):
    """As the features of each token; a vector of another length stays as it is."""
    ids = keras.Input((None,), dtype="int32", name="ids")
    features, other = keras.Input((None, D)), keras.Input((3,))
    x = keras.layers.Embedding(V, D)(ids) + features
    x = x + keras.layers.Reshape((1, D))(keras.layers.Dense(D)(other))
    model = keras.Model([ids, features, other], x)
    inputs = [IDS, rng.normal(size=(2, L, D)), rng.normal(size=(2, 3))]
    assert audit.check_padding_invariance(model, inputs).ok


@pytest.mark.backends("torch")
def test_inputs_of_one_shape_keep_their_own_padding():
    inputs = {"source_ids": IDS, "target_ids": IDS[::-1]}
    options = {"extra": 0, "num_draws": 1, "training": False}
    assert audit.check_padding_invariance(translator(), inputs, **options).ok


# The model stays as it was.


@pytest.mark.slow_on("tensorflow", "jax")
def test_the_model_is_left_as_it_was(rng):
    model = attentive(dropout=0.3, use_causal_mask=True)
    norm = keras.layers.BatchNormalization()
    model = keras.Model(model.inputs, norm(model.outputs[0]))
    model.compile("adam", "mse", metrics=["mae"])
    labels = rng.normal(size=(2, L, D))
    model.train_on_batch(IDS, labels)

    def state():
        return [
            ops.convert_to_numpy(v)
            for v in (*model.variables, *model.metrics_variables)
        ]

    def dropped():
        dropout = keras.layers.Dropout(0.5)(ops.ones(50), training=True)
        return ops.convert_to_numpy(dropout)

    keras.utils.set_random_seed(1)
    expected = dropped()
    keras.utils.set_random_seed(1)
    before = state()
    audit.check_causality(model, IDS, num_draws=1)
    audit.check_padding_invariance(model, IDS, num_draws=1)
    np.testing.assert_equal(state(), before)
    np.testing.assert_array_equal(dropped(), expected)
    for layer in model._flatten_layers():
        assert "call" not in vars(layer)


@pytest.mark.backends("torch")
def test_a_stack_leaves_out_padding_again_after_an_audit():
    model = translator()
    stacks = [x for x in layers_of(model) if isinstance(x, layers.TransformerStack)]
    audit.check_padding_invariance(model, PAIR, num_draws=1, training=False)
    assert [stack.unpad for stack in stacks] == [True, True]
    stacks[0].unpad = False
    audit.check_padding_invariance(model, PAIR, num_draws=1, training=False)
    assert [stack.unpad for stack in stacks] == [False, True]


# What an audit stands on.


def test_random_content_differs_everywhere(rng):
    for array in (IDS, IDS > 0, rng.normal(size=(2, 3)).astype("float32")):
        size = None if array.dtype == "float32" else (2 if array.dtype == bool else V)
        for _ in range(20):
            other = random_content(array, size, rng)
            assert other.dtype == array.dtype
            assert (other != array).all()
            assert size is None or ((other >= 0) & (other < size)).all()


def test_differences_are_relative_to_the_larger_or_the_typical_number():
    left = np.array([[1.0, 2.0, 0.0, -1e9, 100.0, np.nan, np.inf]])
    for place, change, expected in (
        (0, 1e-6, False),
        (0, 1e-3, True),
        (2, 1e-6, False),
        (2, 1e-3, True),
        (3, 100.0, False),
        (3, 1e6, True),
        (4, 5e-4, False),
        (4, 5e-2, True),
        (5, 1.0, False),
    ):
        right = left.copy()
        right[0, place] += change
        found = differs(left, right, 1e-5)
        assert found[0, place] == expected
        assert found.sum() == expected
    right = left.copy()
    right[0, 6] = 5.0
    assert differs(left, right, 1e-5)[0, 6]
    assert differs(np.array([10**9]), np.array([10**9 + 1]), 1e-5).all()


# Errors.


@pytest.mark.parametrize(
    ("make", "inputs", "options", "message"),
    [
        (lambda: len, IDS, {}, "`model` must be a Keras model.*Received: model=<built"),
        (embedded, IDS[0], {}, r"`inputs` must hold arrays.*'ids' of shape \(5,\)"),
        (embedded, IDS[:, :1], {}, r"`inputs` must hold at least 2.*'ids'.*\(2, 1\)"),
        (embedded, IDS, {"num_draws": 0}, "`num_draws` must be.*num_draws=0"),
        (translator, PAIR, {"which": "x"}, "`which` must name an input.*which='x'"),
        (translator, PAIR, {"which": None}, "`which` must be the name.*which=None"),
        (
            translator,
            {"source_ids": PAIR["source_ids"]},
            {},
            "`inputs` must hold an array for each input of the model, ",
        ),
        (lambda: embedded(keras.layers.Flatten()), IDS, {}, r"`model` must have.*40"),
        (
            lambda: embedded(Apply(ops.zeros_like)),
            IDS,
            {},
            "`model` must depend on 'ids'.*Received: model='functional",
        ),
        (
            lambda: embedded(),
            IDS,
            {"vocabulary_size": 7},
            "`vocabulary_size` must be.*largest is 7.*vocabulary_size=7",
        ),
        (
            lambda: keras.Sequential([Apply(lambda x: 2 * x)]),
            IDS,
            {},
            "`vocabulary_size` must be given.*Received: vocabulary_size=None",
        ),
    ],
)
def test_says_what_does_not_fit(make, inputs, options, message):
    with pytest.raises(ValueError, match=message):
        audit.check_causality(make(), inputs, **options)


def test_a_model_with_randomness_of_its_own_is_an_error():
    state = np.random.default_rng(0)

    class Noisy(keras.layers.Layer):
        def call(self, x):
            return ops.add(x, state.normal(size=(1, 1, D)).astype("float32"))

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.table, self.noisy = keras.layers.Embedding(V, D), Noisy()

        def call(self, ids):
            return self.noisy(self.table(ids))

    for check in (audit.check_causality, audit.check_padding_invariance):
        with pytest.raises(ValueError, match="`model` must give equal outputs.*'model"):
            check(Model(), IDS)


@pytest.mark.parametrize(
    ("make", "inputs", "options", "message"),
    [
        (
            lambda: embedded(),
            IDS[:1],
            {"extra": 0},
            "`inputs` must hold padding.*Received: 'ids'",
        ),
        (
            lambda: embedded(),
            0 * IDS,
            {},
            "`inputs` must hold a real position.*Received: 'ids'",
        ),
        (
            lambda: pooled(False),
            [np.ones((2, L, D)), np.zeros((2, L), bool)],
            {"masks": {"x": "mask"}},
            "`inputs` must hold a real position.*Received: 'x'",
        ),
        (
            lambda: keras.Model(x := keras.Input((L,), dtype="int32", name="x"), x + 1),
            IDS,
            {},
            "`extra` must be 0 for 'x'.*5.*Received: extra=4",
        ),
        (
            lambda: keras.Model(x := keras.Input((L,), dtype="int32", name="x"), x + 1),
            IDS,
            {"extra": 0},
            "`extra` must be positive.*Received: extra=0",
        ),
        (
            lambda: keras.Model(x := keras.Input((None, D), name="x"), x + 1),
            np.zeros((2, L, D)),
            {},
            r"`which` must name an input with padding.*which=None.*\['x'\]",
        ),
        (
            lambda: embedded(keras.layers.Permute((2, 1))),
            IDS,
            {},
            r"`select` must leave.*\(2, 8, 5\) which becomes \(2, 8, 9\)",
        ),
        (translator, PAIR, {"masks": {"source_ids": "m"}}, "`masks`.*masks='m'"),
        (
            translator,
            PAIR,
            {"masks": {"source_ids": "target_ids"}},
            r"`masks` must name for 'source_ids'.* \(2, 6\).*'target_ids', .* \(2, 5\)",
        ),
    ],
)
def test_says_what_padding_does_not_fit(make, inputs, options, message):
    with pytest.raises(ValueError, match=message):
        audit.check_padding_invariance(make(), inputs, **options)


def test_two_padded_inputs_of_one_sequence_are_lengthened_by_the_name_of_one():
    ids, segments = (keras.Input((None,), dtype="int32", name=x) for x in "ab")
    embedded = [keras.layers.Embedding(V, D)(x) for x in (ids, segments)]
    model = keras.Model([ids, segments], keras.layers.Add()(embedded))
    given = [IDS, np.minimum(IDS, 1)]
    message = r"`which` must name one of \['a', 'b'\].*Received: which=None"
    with pytest.raises(ValueError, match=message):
        audit.check_padding_invariance(model, given, num_draws=1)
    assert audit.check_padding_invariance(model, given, which="a", num_draws=1).ok


def test_an_error_that_is_not_of_lengths_stays_as_it_is():
    class Short(keras.layers.Layer):
        def call(self, ids):
            if ids[0].shape[1] > L:
                raise RuntimeError("too long")
            return ops.one_hot(ids[0], V)

    with pytest.raises(RuntimeError, match="too long"):
        audit.check_padding_invariance(Short(), [IDS, IDS])


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([[5, 0, 7]], "later (position 1 is padding), in"),
        ([[5, 0, 7], [5, 6, 7]], "(position 1 is padding in 1 of 2 rows)"),
        ([[5, 6, 0]], "(position 2 is padding)"),
        ([[5, 6, 7]], "comes later, in inference."),
    ],
)
def test_a_leak_at_padding_says_so(rows, said):
    ids = keras.Input((3,), dtype="int32")
    x = keras.layers.Embedding(11, 4)(ids)
    leaky = ops.concatenate([x[:, :1], x[:, 1:2] + x[:, 2:], x[:, 2:]], axis=1)
    report = audit.check_causality(keras.Model(ids, leaky), np.array(rows))
    assert report.position == 1
    assert said in report.message
