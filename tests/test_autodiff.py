"""Every gradient written by hand, within every transformation of the backends."""

import functools
import gc
import weakref

import keras
import numpy as np
import pytest
from keras import ops

from keras_seqattn.backend.autodiff import custom_gradient, gradients
from keras_seqattn.layers.attention.additive import additive_attention
from keras_seqattn.layers.attention.functional import dot_product_attention
from keras_seqattn.layers.attention.kernels.chunked.kernel import chunked_attention
from keras_seqattn.layers.attention.unpadding import Unpadding
from keras_seqattn.layers.distances import DistanceBias
from keras_seqattn.training.consistency import find_pairs, paired_divergence
from keras_seqattn.training.crossentropy import projected_crossentropy
from keras_seqattn.training.losses import MaskedCrossentropy
from tests.differentiate import upstream_gradient, values_and_gradients
from tests.pairs import slow

BACKEND = keras.backend.backend()
B, L, H, K, V = 2, 6, 2, 4, 5
rng = np.random.default_rng(0)


def normal(*shape):
    return rng.normal(size=shape).astype("float32")


REAL = np.arange(L) < np.array([[L], [4]])
LABELS = np.where(REAL, rng.integers(1, V, (B, L)), 0).astype("int32")
WEIGHTS = rng.choice([0.5, 1.0, 3.0], (B, L)).astype("float32")
HEADS, VECTORS, LOGITS = normal(B, L, H, K), normal(B, L, K), normal(B, L, V)


def loss(x, labels, weights):
    y = MaskedCrossentropy(label_smoothing=0.1)(labels, x, sample_weight=weights)
    return ops.sum(y)


def projected(x, kernel, labels, weights, paired):
    labels, weights = ops.reshape(labels, (-1,)), ops.reshape(weights, (-1,))
    pairs = find_pairs(labels, weights, L) if paired else None
    return projected_crossentropy(x, kernel, labels, weights, 0.1, pairs, 2.0)[0]


def consistency(x, labels, weights):
    labels, weights = ops.reshape(labels, (-1,)), ops.reshape(weights, (-1,))
    pairs = find_pairs(labels, weights, L)
    return paired_divergence(ops.reshape(x, (-1, V)), pairs, rows=4)


def weighed(y):
    return ops.sum(y * ops.convert_to_tensor(upstream_gradient(y.shape)))


class Seed(keras.random.SeedGenerator):
    """Hands a tensor to what draws."""

    def __init__(self, seed):
        self.next = lambda ordered=True: seed


def chunked(x, mask, bias, seed, **options):
    options = {"mask": mask[:, None, None], "bias": bias, "dropout": 0.3} | options
    y = chunked_attention(x, x, x, seed=Seed(seed), block_length=4, **options)
    return weighed(y)


def by_distance(x, mask, bias, seed):
    return chunked(x, mask, DistanceBias(bias, L), seed)


def constant_distance(x, mask, bias, seed):
    bias = DistanceBias(bias, L, learned=False)
    return chunked(x, mask, bias, seed, causal=True, window=3)


def explicit(x, mask):
    mask = mask[:, None, None]
    return weighed(dot_product_attention(x, x, x, mask=mask, implementation="explicit"))


def additive(x, vector, mask):
    return weighed(additive_attention(x, x, x, vector, mask=mask[:, None, None]))


def packed(x, mask):
    tokens = Unpadding(mask)
    return weighed(tokens.pad(ops.tanh(tokens.unpad(x))))


SEED = np.array([3, 4], {"jax": "uint32"}.get(BACKEND, "int32"))
CASES = {
    "loss": (loss, LOGITS, LABELS, WEIGHTS),
    "projected": (
        lambda *args: projected(*args, paired=False),
        *(VECTORS, normal(K, V), LABELS, WEIGHTS),
    ),
    "projected pairs": (
        lambda *args: projected(*args, paired=True),
        *(VECTORS, normal(K, V), np.ones_like(LABELS), np.ones_like(WEIGHTS)),
    ),
    "consistency": (
        consistency,
        *(LOGITS, np.ones_like(LABELS), np.ones_like(WEIGHTS)),
    ),
    "chunked": (chunked, HEADS, REAL, normal(1, H, L, L), SEED),
    "chunked by distance": (by_distance, HEADS, REAL, normal(H, 2 * L - 1), SEED),
    "chunked constant": (constant_distance, HEADS, REAL, normal(H, 2 * L - 1), SEED),
    "explicit": (explicit, HEADS, REAL),
    "additive": (additive, HEADS, normal(H, K), REAL),
    "packed": (packed, VECTORS, REAL),
}
if BACKEND == "jax":
    del CASES["packed"]  # Rows need shapes that depend on values.


def _tensorflow(name, function, x, others):
    """Differentiates within functions, branches and loops of TensorFlow."""
    import tensorflow as tf

    def differentiated(function, jit_compile=None):
        def run(x, *others):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = function(x, *others)
            return tape.gradient(y, x)

        if jit_compile is None:
            return run(x, *others)
        return tf.function(run, jit_compile=jit_compile, autograph=False)(x, *others)

    def branch(function, x):
        return tf.cond(tf.reduce_sum(x) < 1e9, lambda: function(x), lambda: 0.0)

    def loop(function, x):
        _, total = tf.while_loop(
            lambda i, _: i < 2,
            lambda i, total: (i + 1, total + function(x)),
            (0, 0.0),
            maximum_iterations=2,
        )
        return total / 2

    def nested(function, x):
        return tf.function(function, autograph=False)(x)

    def remat(function, x):
        return keras.remat(function)(x)

    def within(*transformations):
        def transformed(x, *others):
            # Alone an argument: to all of them TensorFlow's `recompute_grad` adds
            # zeros, which bools do not take.
            inner = functools.partial(_with_last, function, others)
            for transformation in transformations:
                inner = functools.partial(transformation, inner)
            return inner(x)

        return transformed

    return {
        "eager": lambda: differentiated(function),
        # Not a branch within a loop, where any `tf.custom_gradient` of two arguments
        # fails in TensorFlow 2.21.
        "all": lambda: differentiated(within(nested, loop, branch), False),
        "nested": lambda: differentiated(within(nested)),
        "nested twice": lambda: differentiated(within(nested, nested), False),
        "branch": lambda: differentiated(within(branch), False),
        "loop": lambda: differentiated(within(loop), False),
        "remat": lambda: differentiated(within(remat)),
        "remat compiled": lambda: differentiated(within(remat), False),
    }[name]()


def _with_last(function, others, x):
    return function(x, *others)


def _jax(name, function, x, others):
    """Differentiates within the transformations of JAX."""
    import jax

    def branch(function):
        def either(x, *others):
            branches = lambda: function(x, *others), lambda: 0.0
            return jax.lax.cond(x.sum() < 1e9, *branches)

        return either

    def loop(function):
        def twice(x, *others):
            def body(total, _):
                return total + function(x, *others), None

            return jax.lax.scan(body, 0.0, length=2)[0] / 2

        return twice

    def of_carried(x, *others):
        def body(x, _):
            return x, function(x, *others)

        return jax.lax.scan(body, x, length=2)[1].mean()

    if name == "vmap":
        every = [np.stack([array, array]) for array in (x, *others)]
        return jax.vmap(jax.grad(function))(*every)[1]
    transformed = {
        "eager": lambda: jax.grad(function),
        "grad of jit": lambda: jax.grad(jax.jit(function)),
        "jit of grad": lambda: jax.jit(jax.grad(function)),
        "jit of grad of jit": lambda: jax.jit(jax.grad(jax.jit(function))),
        "all": lambda: jax.grad(jax.jit(loop(branch(keras.remat(jax.jit(function)))))),
        "branch": lambda: jax.grad(branch(function)),
        "loop": lambda: jax.grad(loop(function)),
        "carried": lambda: jax.jit(jax.grad(of_carried)),
        "checkpoint": lambda: jax.grad(jax.checkpoint(function)),
        "remat": lambda: jax.jit(jax.grad(keras.remat(function))),
        "remat of jit": lambda: jax.grad(keras.remat(jax.jit(function))),
    }[name]()
    return transformed(x, *others)


def _torch(name, function, x, others):
    import torch

    x = x.detach().requires_grad_()
    function = {"eager": function, "remat": keras.remat(function)}[name]
    return torch.autograd.grad(function(x, *others), x)[0]


TRANSFORMED = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}[BACKEND]
# What the default tier goes through: all transformations, one within the other.
TOGETHER = {
    "tensorflow": ["all", "remat compiled"],
    "jax": ["all"],
    "torch": ["remat"],
}[BACKEND]
ALONE = {
    "tensorflow": ["nested", "nested twice", "branch", "loop", "remat"],
    "jax": ["grad of jit", "jit of grad", "jit of grad of jit", "branch", "loop"]
    + ["carried", "checkpoint", "remat", "remat of jit", "vmap"],
    "torch": [],
}[BACKEND]
SIBLINGS = ["projected", "chunked constant", "chunked by distance"]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr("keras_seqattn.training.crossentropy.BLOCK_LOGITS", 1)
    monkeypatch.setattr("keras_seqattn.layers.attention.additive.AT_ONCE", 1)


@pytest.fixture(scope="module")
def expected():
    """The gradient of each case by itself, computed once."""
    known = {}

    def compute(case):
        if case not in known:
            function, *arrays = CASES[case]
            x, *others = map(ops.convert_to_tensor, arrays)
            known[case] = TRANSFORMED("eager", function, x, others)
        return ops.convert_to_numpy(known[case])

    return compute


@pytest.mark.parametrize("name", [*TOGETHER, *slow(*ALONE)])
@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case not in SIBLINGS] + slow(*SIBLINGS),
)
def test_a_gradient_is_the_same_within_a_transformation(case, name, expected):
    """What the gradients close over are arguments of the function transformed."""
    function, *arrays = CASES[case]
    x, *others = map(ops.convert_to_tensor, arrays)
    gradient = ops.convert_to_numpy(TRANSFORMED(name, function, x, others))
    assert np.abs(expected(case)).max() > 1e-3
    np.testing.assert_allclose(gradient, expected(case), rtol=1e-4, atol=1e-5)


def test_gradients_of_a_tensor(rng):
    x, w = rng.normal(size=(2, 3)), rng.normal(size=3)
    gradient = gradients(lambda x: ops.sum(ops.multiply(ops.tanh(x) ** 2, w)), x)
    tanh = np.tanh(x)
    expected = 2 * tanh * (1 - tanh**2) * w
    assert isinstance(gradient, np.ndarray)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5)


def test_gradients_flow_through_a_layer_and_its_variables(rng):
    layer = keras.layers.Dense(2)
    layer.build((None, 3))
    gradient = gradients(lambda x: ops.sum(layer(x)[0]), rng.normal(size=(2, 3)))
    kernel = ops.convert_to_numpy(layer.kernel)
    np.testing.assert_allclose(gradient, [kernel.sum(axis=1), np.zeros(3)], rtol=1e-5)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: ops.sum(ops.stop_gradient(x)),
        lambda x: ops.cast(ops.argmax(x), "float32"),
        lambda x: ops.sum(ops.ones(2)),
    ],
    ids=["stopped", "not differentiable", "of no input"],
)
def test_gradients_are_zero_where_nothing_reaches(function):
    np.testing.assert_array_equal(gradients(function, np.ones(3)), np.zeros(3))


@pytest.mark.parametrize("mode", ["eager", "graph", "jit"])
def test_a_function_has_the_gradients_that_it_says(rng, mode):
    @custom_gradient
    def added(x, y):
        return x + y, lambda upstream: (2.0 * upstream, ops.sum(3.0 * upstream, axis=0))

    x, y = rng.normal(size=(2, 3)), rng.normal(size=3)
    value, (of_x, of_y) = values_and_gradients(added, [x, y], mode)
    upstream = upstream_gradient((2, 3))
    np.testing.assert_allclose(value, x + y, rtol=1e-5)
    np.testing.assert_allclose(of_x, 2.0 * upstream, rtol=1e-5)
    np.testing.assert_allclose(of_y, 3.0 * upstream.sum(0), rtol=1e-5)


@pytest.mark.backends("tensorflow")
def test_a_graph_is_freed_that_has_a_gradient_written_by_hand():
    import tensorflow as tf

    @custom_gradient
    def reversed_(x):
        scale = ops.sum(x)  # a tensor of the graph, in the gradient too
        return x, lambda upstream: -scale * upstream

    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = ops.sum(reversed_(2.0 * reversed_(x)))
        return tape.gradient(total, x)

    program = tf.function(run).get_concrete_function(tf.TensorSpec((2,)))
    np.testing.assert_allclose(program(tf.ones(2)), [16.0, 16.0])
    graph = weakref.ref(program.graph)
    del program
    gc.collect()
    assert graph() is None


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_the_loss_has_a_second_derivative(label_smoothing, rng):
    """The Hessian of a token's crossentropy: diag(p) - p p^T, whatever smoothes it."""
    logits, direction = rng.normal(size=(2, 1, 1, V)).astype("float32")
    crossentropy = MaskedCrossentropy(label_smoothing=label_smoothing)
    labels = ops.convert_to_tensor(np.array([[2]], "int32"))

    def of_loss(x):
        return ops.sum(crossentropy(labels, x))

    product = second_derivative(of_loss, logits, direction)
    probs = np.exp(logits[0, 0]) / np.exp(logits[0, 0]).sum()
    hessian = np.diag(probs) - np.outer(probs, probs)
    np.testing.assert_allclose(product[0, 0], hessian @ direction[0, 0], atol=1e-5)


def second_derivative(function, x, direction):
    """Returns the product of a scalar function's Hessian with a direction."""
    x, direction = map(ops.convert_to_tensor, (x, direction))
    if BACKEND == "jax":
        import jax

        gradient = jax.grad(lambda x: ops.sum(jax.grad(function)(x) * direction))(x)
    elif BACKEND == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = function(x)
            gradient = inner.gradient(y, x)
        gradient = outer.gradient(gradient, x, direction)
    else:
        import torch

        x = x.detach().requires_grad_()
        gradient = torch.autograd.grad(function(x), x, create_graph=True)[0]
        gradient = torch.autograd.grad(gradient, x, direction)[0]
    return ops.convert_to_numpy(gradient)
