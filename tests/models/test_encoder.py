import keras
import numpy as np
import pytest

from keras_seqattn import models, training
from tests import oracle
from tests.evaluate import JIT, numpy, outputs
from tests.layers.weights import block_weights, dense_weights, norm_weights, randomize
from tests.pairs import each_variant, named

V, D, C = 11, 8, 3
IDS = np.array([[5, 9, 3, 2, 0], [4, 7, 8, 6, 2], [3, 0, 0, 0, 0]])
REAL = IDS != 0
SMALL = {
    "vocabulary_size": V,
    "model_dim": D,
    "num_heads": 2,
    "num_layers": 1,
    "intermediate_dim": 12,
}


def small(rng=None, **arguments):
    model = models.EncoderModel(**{**SMALL, **arguments})
    if rng is not None:
        randomize(model, rng)
    return model


def logits(model, token_ids=IDS):
    return outputs(model, np.asarray(token_ids))


def oracle_hidden(model):
    """What the stack gives, and the table."""
    by_name = {layer.name: layer for layer in model.layers}
    table = numpy(by_name["embedding"].embeddings).astype("float64")
    x = table[IDS] * np.sqrt(D) + oracle.sinusoidal_table(IDS.shape[1], D)
    mask = REAL[:, :, None] & REAL[:, None]
    x = oracle.encoder_block(x, block_weights(by_name["encoder_0"]), mask, epsilon=1e-5)
    return oracle.normalize(x, norm_weights(by_name["encoder_norm"]), 1e-5), table


def test_tokens_equal_the_oracle(rng):
    model = small(rng)
    hidden, table = oracle_hidden(model)
    expected = hidden @ table.T
    np.testing.assert_allclose(logits(model)[REAL], expected[REAL], atol=2e-4)


@pytest.mark.parametrize("pooling", ["mean", "first"])
def test_classes_equal_the_oracle(rng, pooling):
    model = small(rng, num_classes=C, pooling=pooling)
    hidden, _ = oracle_hidden(model)
    pooled = [
        row[0] if pooling == "first" else row[real].mean(0)
        for row, real in zip(hidden, REAL, strict=True)
    ]
    dense = dense_weights(model.get_layer("classes"))
    expected = oracle.dense(np.stack(pooled)[:, None], *dense)[:, 0]
    np.testing.assert_allclose(logits(model), expected, atol=2e-4)


def test_classes_leave_no_weight_without_a_gradient():
    model = small(num_classes=C, logits_bias=True)
    paths = [weight.path for weight in model.weights if "embedding" in weight.path]
    assert paths == ["embedding/embeddings"]


PADDED = [
    {"positions": "rotary", "norm": "rms"},
    {"positions": "alibi", "normalize_first": False},
    {"positions": "relative", "num_layers": 2, "share_layers": True},
    {"positions": "learned", "max_length": 9, "pad_id": V - 1},
]


@each_variant("options", named(*PADDED), on_jax=[], on_tensorflow=[str(PADDED[2])])
@pytest.mark.parametrize("num_classes", [None, C])
def test_padding_changes_nothing(rng, options, num_classes):
    model = small(rng, num_classes=num_classes, **options)
    ids = np.where(REAL, IDS, model.pad_id)
    given = logits(model, np.pad(ids, ((0, 0), (0, 2)), constant_values=model.pad_id))
    for row, real, output in zip(ids, REAL, given, strict=True):
        alone = logits(model, [row[real]])[0]
        if num_classes is None:
            output = output[: real.sum()]
        np.testing.assert_allclose(output, alone, atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "first"])
def test_what_classes_are_read_from_drops_while_training(rng, pooling):
    model = small(rng, num_classes=C, pooling=pooling, dropout=0.5)
    probe = keras.Model(model.input, model.get_layer("classes").input)
    ids = np.tile(IDS, (20, 1))
    assert numpy(probe(ids)).all()
    pooled = numpy(probe(ids, training=True))
    assert 0.4 < (pooled == 0).mean() < 0.6


def test_every_position_sees_all(rng):
    model = small(rng)
    changed = IDS.copy()
    changed[1, 3] = 10
    moved = np.abs(logits(model, changed) - logits(model)).max(-1)
    assert (moved[1] > 1e-4).all() and not moved[[0, 2]].any()


def test_a_text_of_padding_alone_is_finite(rng):
    model = small(rng, num_classes=C)
    assert np.isfinite(logits(model, np.zeros((1, 4), "int32"))).all()


@pytest.mark.slow_on("jax")
def test_the_mask_goes_with_tokens_and_not_with_classes():
    np.testing.assert_array_equal(numpy(small()(IDS)._keras_mask), REAL)
    scaled = small(base_dim=2 * D)(IDS)
    np.testing.assert_array_equal(numpy(scaled._keras_mask), REAL)
    assert getattr(small(num_classes=C)(IDS), "_keras_mask", None) is None


def test_untied_output_is_a_table_of_its_own():
    shapes = [tuple(weight.shape) for weight in small(tie_embeddings=False).weights]
    assert (V, D) in shapes and (D, V) in shapes
    assert (D, V) not in [tuple(weight.shape) for weight in small().weights]


@pytest.mark.slow_on("tensorflow", "jax")
def test_learns_classes_with_keras_s_own_loss():
    """The class is the token that stands twice, wherever it does."""
    keras.utils.set_random_seed(2)
    rng = np.random.default_rng(2)
    labels = rng.integers(0, C, size=240)
    ids = np.stack([rng.permutation([3, 4, 5, 3 + label]) for label in labels])
    model = small(num_classes=C, model_dim=16, dropout=0.0)
    model.compile(
        keras.optimizers.Adam(0.02),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=JIT,
    )
    model.fit(ids, labels, batch_size=60, epochs=8, verbose=0)
    assert model.evaluate(ids, labels, verbose=0, return_dict=True)["accuracy"] > 0.9


@pytest.mark.slow_on("jax", "tensorflow")
def test_learns_masked_tokens_with_keras_s_own_loss():
    """A row is one token over and over; the hidden one is known by the others."""
    keras.utils.set_random_seed(3)
    rng = np.random.default_rng(3)
    mask_id, length = 3, 5
    words = rng.integers(4, V, size=(120, 1))
    hidden = np.arange(length) == rng.integers(0, length, size=(120, 1))
    ids = np.where(hidden, mask_id, words)
    labels = np.where(hidden, words, 0)  # 0 stands where nothing is to be told
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    model = small(model_dim=16, dropout=0.0)
    model.compile(keras.optimizers.Adam(0.02), loss, jit_compile=JIT)
    model.fit(ids, labels, batch_size=60, epochs=10, verbose=0)
    # Ours leaves the same labels out, and means the same positions.
    np.testing.assert_allclose(
        model.evaluate(ids, labels, batch_size=120, verbose=0),
        numpy(training.MaskedCrossentropy()(labels, model(ids))),
        rtol=1e-3,
    )
    told = logits(model, ids).argmax(-1)
    assert (told == labels)[hidden].mean() > 0.9


@each_variant(
    "policy", named("mixed_bfloat16", "mixed_float16"), on_jax=["mixed_bfloat16"]
)
def test_mixed_precision(rng, policy):
    model = small(rng, num_classes=C)
    mixed = models.EncoderModel.from_config(
        small(num_classes=C, dtype=policy).get_config()
    )
    assert mixed.dtype_policy.name == policy
    mixed.set_weights(model.get_weights())
    expected = logits(model)
    close = {"atol": 0.05 * np.abs(expected).max()}
    np.testing.assert_allclose(logits(mixed), expected, **close)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"vocabulary_size": 0}, "`vocabulary_size` must.*vocabulary_size=0"),
        ({"num_classes": 0}, "`num_classes` must.*num_classes=0"),
        ({"num_layers": -1}, "`num_layers` must.*num_layers=-1"),
        ({"pooling": "last"}, "`pooling` must.*pooling='last'"),
        ({"positions": "learned"}, "`max_length` must.*max_length=None"),
        ({"pad_id": V}, "`pad_id` must.*pad_id=11"),
    ],
    ids=str,
)
def test_says_what_is_wrong(arguments, message):
    with pytest.raises(ValueError, match=message):
        small(**arguments)
