"""Our Adam is Keras's, whatever runs it, and so is Muon, but for three axes."""

import re

import keras
import numpy as np
import pytest
from keras import ops

import keras_seqattn as ks
from keras_seqattn.training import Adam, Muon, optimizers
from keras_seqattn.training.optimizers import is_matrix
from tests.pairs import each_variant, named

rng = np.random.default_rng(0)
X, IDS = rng.normal(size=(8, 5)), rng.integers(0, 7, 8)
OPTIONS = {"learning_rate": 0.01, "beta_2": 0.98, "epsilon": 1e-6, "name": "adam"}


def trained(cls, jit_compile="auto", dtype="float32", run_eagerly=False, **options):
    """Trains two dense layers; gives all weights by name, the optimizer's too."""
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(dtype)
    layers = [keras.layers.Dense(4, name="a"), keras.layers.Dense(7, name="b")]
    model = keras.Sequential([keras.Input((5,)), *layers], name="model")
    model.compile(
        cls(**{**OPTIONS, **options}),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=jit_compile,
        run_eagerly=run_eagerly,
    )
    model.fit(X, IDS, batch_size=4, epochs=3, verbose=0)
    variables = [*model.trainable_variables, *model.optimizer.variables]
    return {v.path: ops.convert_to_numpy(v) for v in variables}


@pytest.mark.slow_on("tensorflow")
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(options, marks=pytest.mark.backends("tensorflow"))
        for options in (
            {"jit_compile": False},
            {
                "jit_compile": False,
                "clipnorm": 0.1,
                "weight_decay": 0.1,
                "use_ema": True,
            },
            {"jit_compile": False, "amsgrad": True},
            {"jit_compile": False, "dtype": "mixed_float16"},
            {"jit_compile": True},
            {"run_eagerly": True},
        )
    ]
    + [pytest.param({}, marks=pytest.mark.backends("jax", "torch"))],
    ids=lambda options: "-".join(options),
)
def test_weights_and_state_are_those_of_keras(options):
    ours, theirs = trained(Adam, **options), trained(keras.optimizers.Adam, **options)
    assert list(ours) == list(theirs)
    for name, expected in theirs.items():
        np.testing.assert_allclose(ours[name], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.backends("torch")
def test_arguments_have_the_places_of_keras():
    given = 0.1, 0.8, 0.98, 1e-6
    ours, theirs = (cls(*given).get_config() for cls in (Adam, keras.optimizers.Adam))
    names = theirs.keys() - {"name"}
    assert {ours[name] == theirs[name] for name in names} == {True}


def test_the_average_is_of_a_share_of_the_steps_so_far():
    """Adam lets a weight of constant gradient fall by the rate at each step."""
    weight = keras.Variable([0.0])
    options = {"use_ema": True, "ema_momentum": 0.8, "epsilon": 1e-12}
    optimizer = Adam(0.1, ema_warmup=True, **options)
    expected, steps = None, 60
    for step in range(steps):
        optimizer.apply([ops.array([1.0])], [weight])
        momentum = min(0.8, (1 + step) / (10 + step)) if step else 0.0
        now = -0.1 * (step + 1)
        expected = momentum * (expected or 0.0) + (1 - momentum) * now
    optimizer.finalize_variable_values([weight])
    value = float(ops.convert_to_numpy(weight)[0])
    assert value == pytest.approx(expected, rel=1e-4)
    assert value == pytest.approx(-0.1 * (steps - 4), rel=0.01)  # five steps at the end
    again = Adam.from_config(optimizer.get_config())
    assert (again.ema_warmup, again.ema_momentum) == (True, 0.8)


@pytest.mark.slow_on("jax")
def test_the_average_counts_batches_that_are_accumulated():
    """So it is of about the last ninth of them, however many make a step."""
    options = {"use_ema": True, "ema_warmup": True, "gradient_accumulation_steps": 4}
    optimizer = Adam(0.1, **options)
    weight = keras.Variable([0.0])
    for _ in range(41):
        optimizer.apply([ops.array([1.0])], [weight])
    assert float(optimizer.ema_momentum) == pytest.approx(41 / 50, abs=0.02)


@pytest.mark.backends("jax", "torch")
def test_muon_trains_in_bfloat16_what_is_no_matrix():
    weight = keras.Variable([0.5], dtype="bfloat16", name="bias")
    optimizer = Muon(0.1)
    for _ in range(2):
        optimizer.apply([ops.array([1.0], "bfloat16")], [weight])
    assert float(ops.cast(weight, "float32")[0]) == pytest.approx(0.3, abs=0.01)


def test_a_weight_learns_at_a_factor_of_the_rate():
    """The first factor whose expression is found in its path; else the rate itself."""
    factors = {"a/ker": 0.5, "kernel$": 3.0}
    paths = ["model/a/kernel", "model/b/kernel", "model/a/bias"]
    weights = [keras.Variable([0.0]) for _ in paths]
    for path, weight in zip(paths, weights, strict=True):
        weight._path = path
    optimizer = Adam(0.1, learning_rate_factors=factors, epsilon=1e-12)
    again = Adam.from_config(optimizer.get_config())
    again.apply([ops.array([1.0])] * 3, weights)
    moved = [float(ops.convert_to_numpy(weight)[0]) for weight in weights]
    assert moved == pytest.approx([-0.05, -0.3, -0.1], rel=1e-4)


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        ({"a": 0.0}, r"`learning_rate_factors\['a'\]` must be .*Received: .*0.0"),
        ({"(": 1.0}, r"must be a dict by regular expressions. Received: .*'\('"),
        ({2: 1.0}, "must be a dict by regular expressions. Received: .*{2: 1.0}"),
        ([1.0], "`learning_rate_factors` must be a dict.*Received: .*1.0"),
        ({re.compile("a"): 1.0}, "`learning_rate_factors` must be a dict.*re.compile"),
        ({b"a": 1.0}, "`learning_rate_factors` must be a dict by regular.*b'a'"),
    ],
)
def test_bad_factors_of_rates_are_refused(factors, message):
    with pytest.raises(ValueError, match=message):
        Adam(learning_rate_factors=factors)


@pytest.mark.parametrize("cls", [Adam, Muon])
@pytest.mark.parametrize("rate", [0, 1, np.float32(0.5), np.int64(2)])
def test_a_rate_is_any_number(cls, rate):
    assert float(cls(rate).learning_rate) == rate


@each_variant("jit_compile", named(True, False), on_jax=["True"], on_tensorflow=[])
def test_the_average_is_computed_in_a_training_too(jit_compile):
    if jit_compile and keras.backend.backend() == "torch":
        pytest.skip("torch compiles by Dynamo")
    options = {"use_ema": True, "ema_momentum": 0.5, "jit_compile": jit_compile}
    plain, warm = (trained(Adam, ema_warmup=x, **options) for x in (False, True))
    for (name, one), other in zip(plain.items(), warm.values(), strict=True):
        if "iteration" not in name and "learning_rate" not in name:
            assert np.isfinite(other).all()
        if "average" in name or "kernel" in name and "adam" not in name:
            assert np.abs(one - other).max() > 1e-7


@pytest.mark.backends("tensorflow", "torch")
def test_a_row_that_is_looked_up_twice_has_one_gradient():
    keras.utils.set_random_seed(0)
    layer = keras.layers.Embedding(3, 2, embeddings_initializer="ones")
    model = keras.Sequential([keras.Input((2,), dtype="int32"), layer])
    model.compile(Adam(0.1), lambda y, z: ops.sum(y * z), jit_compile=False)
    model.fit(np.array([[1, 1]]), np.array([[[1.0, 3.0], [1.0, -2.0]]]), verbose=0)
    # The first update of Adam is by the sign, where epsilon is nothing beside it.
    np.testing.assert_allclose(
        layer.get_weights()[0], [[1.0, 1.0], [0.9, 0.9], [1.0, 1.0]], atol=1e-5
    )


@pytest.mark.slow
@pytest.mark.backends("tensorflow")
def test_replicas_train_too():
    import tensorflow as tf

    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        ours = trained(Adam, jit_compile=False)
    for name, expected in trained(keras.optimizers.Adam, jit_compile=False).items():
        np.testing.assert_allclose(ours[name], expected, rtol=1e-4, atol=1e-6)


@each_variant("jit_compile", named(True, False), on_jax=["True"], on_tensorflow=[])
def test_factors_of_rates_hold_in_a_training(jit_compile):
    if jit_compile and keras.backend.backend() == "torch":
        pytest.skip("torch compiles by Dynamo")
    options = {"jit_compile": jit_compile, "beta_2": 0.999}
    plain = trained(Adam, **options, learning_rate=0.02)
    halved = trained(Adam, **options, learning_rate_factors={"kernel": 2.0, "s$": 2.0})
    weights = [name for name in plain if "adam" not in name]
    assert len(weights) == 4
    for name in weights:
        np.testing.assert_allclose(halved[name], plain[name], rtol=1e-4, atol=1e-5)
    other = trained(Adam, **options, learning_rate_factors={"kernel": 2.0})
    (bias,) = [name for name in weights if name.endswith("b/bias")]
    assert not np.allclose(other[bias], plain[bias], rtol=1e-3)


@pytest.mark.parametrize("cls", [Adam, Muon])
def test_a_model_with_averages_can_be_fit_again(cls):
    """Keras's own optimizers lose the model then, on JAX."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(cls(0.1, use_ema=True, ema_momentum=0.5), "mse")
    x, y = np.ones((8, 3)), np.zeros((8, 1))
    losses = []
    for _ in range(3):
        losses += model.fit(x, y, epochs=2, verbose=0).history["loss"]
        averages = [
            variable
            for variable in model.optimizer.variables
            if "average" in variable.path
        ]
        assert len(averages) == 2
        for weight, average in zip(model.weights, averages, strict=True):
            np.testing.assert_array_equal(*map(ops.convert_to_numpy, (weight, average)))
    assert losses[0] > losses[-1]


MUON = {"learning_rate": 0.01, "adam_beta_2": 0.98, "epsilon": 1e-6, "name": "muon"}
DENSE = (5, 8), (8, 3)  # as the kernels of feed-forward layers


OTHER_MUON = {"momentum": 0.5, "rms_rate": 0.4, "ns_steps": 3, "adam_beta_1": 0.5}
OTHER_MUON["epsilon"] = 0.1


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("options", [{}, OTHER_MUON], ids=["usual", "other"])
@pytest.mark.parametrize("shape", DENSE)
def test_muon_is_that_of_keras_where_a_kernel_has_two_axes(shape, options, rng):
    kernels = [keras.Variable(ops.ones(shape), name="kernel") for _ in range(2)]
    biases = [keras.Variable(ops.ones(shape[1:]), name="bias") for _ in range(2)]
    options = {**MUON, **options}
    of_keras = {**options, "weight_decay": None, "adam_weight_decay": None}
    optimizers = Muon(**options), keras.optimizers.Muon(**of_keras)
    for _ in range(4):
        gradients = [
            ops.array(rng.normal(size=x), "float32") for x in (shape, shape[1:])
        ]
        for optimizer, *weights in zip(optimizers, kernels, biases, strict=True):
            optimizer.apply(gradients, weights)
    for ours, theirs in (kernels, biases):
        ours, theirs = map(ops.convert_to_numpy, (ours, theirs))
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("shape", "matrix"), [((6, 2, 3), (6, 6)), ((2, 3, 6), (6, 6)), ((8, 2, 2), (8, 4))]
)
def test_the_kernel_of_a_projection_is_a_matrix(shape, matrix, rng):
    gradient = rng.normal(size=shape)
    weights = [keras.Variable(np.zeros(x), name="kernel") for x in (shape, matrix)]
    for weight in weights:
        step = ops.array(gradient.reshape(weight.shape), "float32")
        Muon(**MUON).apply([step], [weight])
    one, two = map(ops.convert_to_numpy, weights)
    np.testing.assert_allclose(one.reshape(matrix), two, rtol=1e-5, atol=1e-7)
    values = np.linalg.svd(two, compute_uv=False)
    largest = 0.01 * 0.2 * np.sqrt(max(matrix))
    assert (values > 0.6 * largest).all()
    assert (values < 1.3 * largest).all()
    left, _, right = np.linalg.svd(-gradient.reshape(matrix), full_matrices=False)
    assert np.sum(left @ right * two) > 0.9 * np.linalg.norm(two) * np.sqrt(len(values))


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 2}])
def test_muon_steps_matrices_of_one_size_together_as_one_by_one(
    options, monkeypatch, rng
):
    """Of both orientations; those without a gradient stay as they are."""
    shapes = [(4, 8), (8, 4), (2, 2, 8), (4, 4), (3, 4), (8, 4)]
    gradients = [rng.normal(size=(4, *shape)) for shape in shapes]
    trained = {}
    for most in (1, 64, 2**18):  # none at a time, two of 4 x 8, all
        monkeypatch.setattr(optimizers, "MOST_AT_ONCE", most)
        weights = [keras.Variable(ops.ones(shape), name="kernel") for shape in shapes]
        optimizer = Muon(**MUON, **options)
        optimizer.build(weights)
        for step in range(4):
            given = [ops.array(gradient[step], "float32") for gradient in gradients]
            optimizer.apply([*given[:-1], None], weights)
        trained[most] = [ops.convert_to_numpy(weight) for weight in weights]
    assert [(weight != 1).all() for weight in trained[1]] == [True] * 5 + [False]
    for most in (64, 2**18):
        for one, other in zip(trained[1], trained[most], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_muon_takes_any_iterable_of_weights():
    weights = [keras.Variable(ops.ones((4, 8)), name="kernel") for _ in range(2)]
    gradients = (ops.ones((4, 8)) for _ in weights)
    Muon(0.1).apply(gradients, iter(weights))
    assert all((ops.convert_to_numpy(weight) != 1).all() for weight in weights)


def test_muon_multiplies_once_for_all_matrices_of_a_size(monkeypatch):
    weights = [keras.Variable(ops.ones((4, 8)), name="kernel") for _ in range(5)]
    made, stack = [], ops.stack
    monkeypatch.setattr(ops, "stack", lambda x: made.append(len(x)) or stack(x))
    Muon(0.1).apply([ops.ones((4, 8))] * 5, weights)
    assert made == [5]


def test_muon_lets_a_weight_without_a_slope_stay():
    weight = keras.Variable(ops.ones((4, 8)), name="kernel")
    Muon(0.1).apply([ops.zeros((4, 8))], [weight])
    assert (ops.convert_to_numpy(weight) == 1).all()


def test_muon_leaves_excluded_kernels_to_adam(rng):
    gradient = ops.array(rng.normal(size=(4, 8)), "float32")
    weights = [keras.Variable(ops.ones((4, 8)), name=x) for x in ("kernel", "other")]
    for weight in weights:
        Muon(0.1, exclude_layers=["^output/", "kern"]).apply([gradient], [weight])
    one, other = map(ops.convert_to_numpy, weights)
    np.testing.assert_array_equal(one, other)


def test_muon_knows_matrices_by_their_names():
    excluded = ["logits", "^output/"]
    for path, shape, expected in (
        ("dense/kernel", (4, 3), True),
        ("rnn/recurrent_kernel", (4, 3), True),
        ("attention/query/kernel", (4, 2, 2), True),
        ("convolution/kernel", (3, 3, 4, 4), False),
        ("embedding/embeddings", (4, 3), False),
        ("dense/bias", (3,), False),
        ("output/kernel", (4, 3), False),
        ("feed_forward/output/kernel", (4, 3), True),
        ("model/logits/kernel", (4, 3), False),
    ):
        weight = keras.Variable(np.zeros(shape), name=path.rpartition("/")[2])
        weight._path = path
        assert is_matrix(weight, excluded) == expected, path


@pytest.mark.slow_on("tensorflow", "jax")
@pytest.mark.parametrize("jit_compile", [True, False])
def test_muon_trains_and_is_restored(jit_compile, tmp_path, rng):
    if jit_compile and keras.backend.backend() == "torch":
        pytest.skip("torch compiles by Dynamo")
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6, 8))
    attended = ks.layers.MultiHeadAttention(2, 4)(inputs, inputs)
    model = keras.Model(inputs, keras.layers.Dense(1)(attended))
    options = {"use_ema": True, "ema_momentum": 0.8, "ema_warmup": True}
    model.compile(Muon(0.01, **options), "mse", jit_compile=jit_compile)
    x, y = rng.normal(size=(16, 6, 8)), np.ones((16, 6, 1))
    losses = model.fit(x, y, batch_size=8, epochs=6, verbose=0).history["loss"]
    assert losses[-1] < 0.5 * losses[0]
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert again.optimizer.get_config() == model.optimizer.get_config()
    for each in (model, again):
        each.fit(x, y, batch_size=8, epochs=1, shuffle=False, verbose=0)
    for one, other in zip(model.weights, again.weights, strict=True):
        one, other = map(ops.convert_to_numpy, (one, other))
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.backends("tensorflow")
def test_replicas_train_by_muon_too():
    import tensorflow as tf

    options = {"jit_compile": False, "beta_2": None, "adam_beta_2": 0.98}
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        ours = trained(lambda beta_2, **kwargs: Muon(**kwargs), **options)
    alone = trained(lambda beta_2, **kwargs: Muon(**kwargs), **options)
    for name, expected in alone.items():
        np.testing.assert_allclose(ours[name], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "given",
    [{"momentum": 1.0}, {"rms_rate": 0.0}, {"ns_steps": 0}, {"learning_rate": -1.0}]
    + [{"exclude_layers": x} for x in ("output", ["("], [2], [re.compile("a")])]
    + [{"adam_beta_1": 1.0}, {"adam_beta_2": -0.1}, {"epsilon": 0.0}],
)
def test_bad_options_of_muon_are_refused(given):
    (name,) = given
    with pytest.raises(ValueError, match=f"`{name}` must be .*Received: {name}="):
        Muon(**given)
