import dataclasses
import functools

import keras
import numpy as np
import pytest
from keras import ops

from keras_seqattn import decoding, layers, models, training
from tests import oracle
from tests.differentiate import value_and_gradient
from tests.evaluate import JIT, evaluated, numpy, outputs
from tests.layers.weights import block_weights, norm_weights, randomize
from tests.pairs import each_variant, named

V, D = 11, 8
START, END = 1, 2
IDS = np.array([[1, 6, 4, 8, 5], [1, 7, 9, 0, 0]])
SMALL = {
    "vocabulary_size": V,
    "model_dim": D,
    "num_heads": 2,
    "num_layers": 1,
    "intermediate_dim": 12,
}
VARIANTS = {
    "rotary, two depths": {"num_layers": 2},
    "sinusoidal, post-norm": {"positions": "sinusoidal", "normalize_first": False},
    "learned, untied": {
        "positions": "learned",
        "max_length": 9,
        "tie_embeddings": False,
    },
    "alibi, grouped, windowed": {
        "positions": "alibi",
        "attention": {"num_key_value_heads": 1, "sliding_window": 3},
        "norm": "rms",
    },
    "relative, shared": {
        "positions": "relative",
        "num_layers": 2,
        "share_layers": True,
    },
    "rotary in a layer, gated, normed": {
        "positions": None,
        "attention": {
            "positions": layers.RotaryPositions(base=100.0),
            "qk_norm": True,
        },
        "key_dim": 6,
        "gated": True,
        "activation": "silu",
    },
    "additive, none": {
        "positions": None,
        "attention": {"score": "additive"},
    },
}
MEMORIES = ("rotary", "alibi", "relative", None)


def small(rng=None, **arguments):
    model = models.LanguageModel(**{**SMALL, **arguments})
    if rng is not None:
        randomize(model, rng)
    return model


def logits(model, token_ids=IDS):
    return outputs(model, np.asarray(token_ids))


@pytest.fixture(scope="module")
def model():
    """One model for every test that changes none."""
    keras.utils.set_random_seed(0)
    return small(np.random.default_rng(0))


@pytest.fixture(scope="module")
def remembering():
    """One model with a memory, likewise."""
    keras.utils.set_random_seed(0)
    return small(np.random.default_rng(0), memory_length=3, num_layers=2)


def test_equals_the_oracle(rng):
    model = small(rng, positions="sinusoidal", tie_embeddings=True, num_layers=2)
    by_name = {layer.name: layer for layer in model.layers}
    table = numpy(by_name["embedding"].embeddings).astype("float64")
    real = IDS != 0
    x = table[IDS] * np.sqrt(D) + oracle.sinusoidal_table(IDS.shape[1], D)
    for name in ("decoder_0", "decoder_1"):
        x = oracle.decoder_block(
            x,
            None,
            block_weights(by_name[name]),
            target_mask=real[:, :, None] & real[:, None],
            epsilon=1e-5,
        )
    x = oracle.normalize(x, norm_weights(by_name["decoder_norm"]), 1e-5)
    np.testing.assert_allclose(logits(model)[real], (x @ table.T)[real], atol=2e-4)


# Step by step.


@each_variant(
    "options",
    VARIANTS,
    on_jax=["rotary in a layer, gated, normed"],
    on_tensorflow=["rotary, two depths", "relative, shared"],
)
def test_steps_equal_one_pass(rng, options):
    """Two beams go on from each of two prompts, whose lengths differ."""
    model = small(rng, **options)
    prompts, lengths = np.array([[1, 6, 4, 8], [1, 7, 0, 0]], "int32"), (4, 2)
    tokens = rng.integers(3, V, size=(2, 2, 3)).astype("int32")

    def steps(prompts, tokens):
        memory = model.encode(prompts)
        assert memory["hidden"].shape == (2, 4, D) and memory["mask"].shape == (2, 4)
        state = model.initial_state(memory, 4, width=2)
        flat = keras.tree.flatten
        assert all(tuple(each.shape[:2]) == (2, 2) for each in flat(state["beam"]))
        assert all(each.shape[0] == 2 for each in flat(state["sentence"]))
        outputs, said = [], ops.full((2, 2), START, "int32")
        for index in range(4):
            output, state = model.step(said, state, ops.cast(index, "int32"))
            assert keras.backend.standardize_dtype(output.dtype) == "float32"
            outputs.append(output)
            said = tokens[:, :, min(index, 2)]
        return ops.stack(outputs, axis=2)  # (B, W, 4, V)

    texts = np.zeros((2, 2, 7), "int32")
    for b, w in np.ndindex(2, 2):
        text = [*prompts[b, : lengths[b]], *tokens[b, w]]
        texts[b, w, : len(text)] = text
    given = evaluated(steps, model)(prompts, tokens)
    expected = logits(model, texts.reshape(4, 7)).reshape(2, 2, 7, V)
    for b, length in enumerate(lengths):
        np.testing.assert_allclose(
            given[b], expected[b, :, length - 1 : length + 3], atol=1e-5
        )


PROMPTS = np.array([[1, 6, 4], [5, 0, 0], [1, 7, 0]])


def assert_greedy(found, b, rows):
    """Sees that each token, and the end where there is one, is the best of its row."""
    score, tokens = 0.0, found.sequence(b)
    ended = len(tokens) < found.token_ids.shape[-1]
    for token, row in zip(tokens + [END] * ended, rows.astype("float64"), strict=False):
        log_probs = row - np.log(np.exp(row - row.max()).sum()) - row.max()
        score += log_probs[token]
        log_probs[[0, START]] = -np.inf
        assert token == log_probs.argmax()
    np.testing.assert_allclose(found.scores[b, 0], score, rtol=1e-4)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("given", [{"prefix": [[V]]}, {"constraints": [[[V, 5]]]}])
def test_what_is_forced_is_of_the_vocabulary(rng, given):
    with pytest.raises(ValueError, match=f"`{next(iter(given))}"):
        decoding.generate(small(rng), PROMPTS[:1], max_length=4, **given)


@each_variant(
    "positions",
    named("rotary", "sinusoidal"),
    on_jax=["rotary"],
    on_tensorflow=[],
)
def test_generate_takes_the_best_token_of_a_full_pass(rng, positions):
    model = small(rng, positions=positions)
    found = model.generate(PROMPTS, decoding.Greedy(), max_length=5)
    assert found.token_ids.shape == (3, 1, 5)
    lengths = (PROMPTS != 0).sum(1)
    texts = np.zeros((3, 8), "int32")
    for b, prompt in enumerate(PROMPTS):
        text = [*prompt[prompt > 0], *found.sequence(b)]
        texts[b, : len(text)] = text
    output = logits(model, texts)
    for b, length in enumerate(lengths):
        assert_greedy(found, b, output[b, length - 1 :])


@pytest.mark.backends("torch")
def test_a_prompt_may_leave_its_batch_nothing_to_generate():
    """64 prompts fill a batch; the one that is as long as the model allows is alone."""
    model = models.LanguageModel(**SMALL, max_length=8)
    prompts = [[1, 5, 6]] * 64
    whole = [[1, 5, 6, 7, 8, 9, 10, 3]]
    found = decoding.generate(model, [*prompts, *whole])
    expected = decoding.generate(model, [*prompts, [1, 5, 6]])
    assert found.sequence(64) == []
    np.testing.assert_array_equal(found.token_ids[:64], expected.token_ids[:64])


@pytest.mark.backends("torch")
def test_generate_goes_as_far_as_the_model_does():
    model = small(positions="learned", max_length=20)
    assert model.generate(np.full((1, 18), 5)).token_ids.shape == (1, 1, 2)
    assert model.generate(np.full((1, 3), 5)).token_ids.shape == (1, 1, 16)
    assert decoding.generate(model, np.full((1, 16), 5)).token_ids.shape == (1, 1, 4)
    with pytest.raises(ValueError, match="at most 15,.* a prompt of length 5. .*=16"):
        model.generate(np.full((1, 5), 5), max_length=16)
    with pytest.raises(ValueError, match="`prompt_ids` must be shorter than 20.*20"):
        model.generate(np.full((1, 20), 5))
    message = "`source_ids` must leave .* one token .* source_ids of length 20"
    with pytest.raises(ValueError, match=message):
        decoding.generate(model, np.full((1, 20), 5))


@pytest.mark.backends("torch")
def test_prompts_of_other_lengths_go_as_far_each():
    """The longer one has ended where its positions would be past the table."""
    model = small(positions="learned", max_length=20)
    prompts = [[5] * 18, [5] * 3]
    search = decoding.Greedy(banned_ids=(model.end_id,))
    found = model.generate(prompts, search)
    assert found.lengths.tolist() == [[2], [16]]
    for prompt, tokens in zip(prompts, found.token_ids[:, 0], strict=True):
        alone = model.generate([prompt], search).token_ids[0, 0]
        np.testing.assert_array_equal(tokens[: len(alone)], alone)


# What may be seen.


@pytest.mark.parametrize("position", [1, 2, 3, 4])
def test_no_later_token_affects_a_row(model, position):
    text = np.array([[1, 6, 4, 9, 3]])
    changed = text.copy()
    changed[:, position:] = 10
    before, after = logits(model, text), logits(model, changed)
    np.testing.assert_allclose(after[:, :position], before[:, :position], atol=1e-6)
    assert not np.allclose(after[:, position:], before[:, position:])


def test_padding_changes_nothing(model):
    """In front, where tokens after it might see it: rotary ones see distances alone."""
    front = np.array([[0, 0, 1, 7, 9], [1, 6, 4, 8, 5]])
    alone = logits(model, front[:1, 2:])
    np.testing.assert_allclose(logits(model, front)[:1, 2:], alone, atol=1e-5)
    other = small(pad_id=V - 1)
    other.set_weights(model.get_weights())
    padded = logits(other, np.where(front == 0, V - 1, front))
    expected = logits(model, front)[front != 0]
    np.testing.assert_allclose(padded[front != 0], expected, atol=1e-5)


@pytest.mark.backends("torch")
def test_padding_of_prompts_and_segments_may_be_another_token(model, remembering):
    """The same texts under another padding are read the same, as lists too."""
    prompts = [[1, 6, 4], [5]]
    other = small(pad_id=V - 1)
    other.set_weights(model.get_weights())
    for search in (decoding.Greedy(), decoding.BeamSearch(2)):
        banned = {"banned_ids": (0, V - 1)}
        search = dataclasses.replace(search, **banned)
        found, expected = (x.generate(prompts, search) for x in (other, model))
        np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-4)
        for b in range(2):
            assert found.sequence(b) == expected.sequence(b)
    memories = [numpy(x.encode(prompts)["mask"]) for x in (other, model)]
    np.testing.assert_array_equal(*memories)
    other = small(pad_id=V - 1, memory_length=3, num_layers=2)
    other.set_weights(remembering.get_weights())
    memory = others = None
    for ids in (IDS, IDS[:, ::-1]):
        real = ids != 0
        expected, memory = remembering.segment(ids, memory)
        output, others = other.segment(np.where(real, ids, V - 1), others)
        np.testing.assert_allclose(
            numpy(output)[real], numpy(expected)[real], atol=1e-5
        )


# Segments.


@functools.lru_cache(maxsize=8)
def segment_program(model):
    return evaluated(model.segment, model)


def segment(model, token_ids, memory=None):
    """Logits of a segment and the memory after it, by one program a model."""
    memory = model.initial_memory(len(token_ids)) if memory is None else memory
    return segment_program(model)(token_ids, memory)


def chained(model, token_ids, length):
    """Logits of a text read in segments of one length."""
    memory, rows = None, []
    for start in range(0, token_ids.shape[1], length):
        row, memory = segment(model, token_ids[:, start : start + length], memory)
        rows.append(row)
    return np.concatenate(rows, axis=1)


@pytest.mark.slow_on("jax")
def test_an_empty_memory_is_the_plain_causal_decoder(remembering):
    plain = small(num_layers=2)
    plain.set_weights(remembering.get_weights())
    expected = logits(plain)
    np.testing.assert_array_equal(logits(remembering), expected)
    np.testing.assert_allclose(segment(remembering, IDS)[0], expected, atol=1e-5)
    without = evaluated(
        lambda token_ids: remembering.segment(token_ids)[0], remembering
    )
    np.testing.assert_allclose(without(IDS), expected, atol=1e-5)


@pytest.mark.backends("torch")
def test_a_segment_is_dropped_from_in_training(rng):
    model = small(rng, memory_length=3, dropout=0.5)
    still, other = (numpy(model.segment(IDS)[0]) for _ in range(2))
    np.testing.assert_array_equal(still, other)
    dropped, _ = model.segment(IDS, training=True)
    assert np.abs(numpy(dropped) - still).max() > 1e-3


def test_a_segment_is_dropped_from_within_a_call_that_trains(rng):
    model = small(rng, memory_length=3, dropout=0.5)

    class Reader(keras.layers.Layer):
        def call(self, token_ids):
            return model.segment(token_ids)[0]

    still, dropped = (numpy(Reader()(IDS, training=x)) for x in (False, True))
    assert np.abs(dropped - still).max() > 1e-3


def test_a_segment_changes_the_one_after_it(remembering):
    first, second = IDS, np.array([[3, 6, 4], [5, 7, 9]])
    _, memory = segment(remembering, first)
    output, _ = segment(remembering, second, memory)
    _, other_memory = segment(remembering, np.where(first == 8, 10, first))
    other, _ = segment(remembering, second, other_memory)
    assert not np.allclose(output[0], other[0], atol=1e-3)
    np.testing.assert_array_equal(output[1], other[1])


def test_no_gradient_goes_back_into_a_segment(remembering, rng):
    """What is added to all that is remembered changes the loss, without gradient."""
    _, memory = segment(remembering, IDS)
    noise = rng.normal(size=(2, 3, D)).astype("float32")

    def loss(factor):
        noisy = factor * ops.convert_to_tensor(noise)
        hidden = {name: ops.add(x, noisy) for name, x in memory["hidden"].items()}
        output, after = remembering.segment(IDS, {**memory, "hidden": hidden})
        kept = sum(ops.sum(x**2) for x in after["hidden"].values())
        return ops.sum(output**2) + kept + 0.0 * ops.sum(factor)

    value, gradient = value_and_gradient(loss, np.float32(1.0))
    other, _ = value_and_gradient(loss, np.float32(2.0))
    assert gradient == 0.0 and abs(other - value) > 1.0


@each_variant(
    "positions", named(*MEMORIES), on_jax=["relative"], on_tensorflow=["relative"]
)
def test_segments_equal_one_pass_where_the_memory_holds_all(rng, positions):
    options = {"memory_length": 8, "num_layers": 2, "share_layers": True}
    model = small(rng, positions=positions, **options)
    text = rng.integers(1, V, size=(2, 9))
    np.testing.assert_allclose(chained(model, text, 3), logits(model, text), atol=1e-5)


@each_variant("length", named(1, 4), on_jax=["4"])
def test_cuts_are_unseen_where_a_window_is_as_long_as_the_memory(rng, length):
    """The memory then holds all that a position may see."""
    window = {"sliding_window": 4}
    model = small(rng, memory_length=3, attention=window, num_layers=2)
    text = rng.integers(1, V, size=(2, 8))
    given = chained(model, text, length)
    np.testing.assert_allclose(given, logits(model, text), atol=1e-5)


@pytest.mark.backends("tensorflow", "torch")
def test_memory_reaches_as_far_back_as_depth_times_length(rng):
    """Two blocks of memory 2 see 4 segments of one token back, and no farther."""
    model = small(rng, memory_length=2, num_layers=2)
    texts = np.tile([3, 4, 5, 6, 7, 8], (7, 1))
    texts[np.arange(6), np.arange(6)] = 9  # the last row stays as it is
    output = chained(model, texts, 1)
    moved = np.abs(output - output[-1]).max(-1)[:6] > 1e-4
    behind = np.arange(6)[None] - np.arange(6)[:, None]
    np.testing.assert_array_equal(moved, (behind >= 0) & (behind <= 4))


@each_variant(
    "positions",
    named("rotary", "relative"),
    on_jax=[],
    on_tensorflow=[],
)
def test_generate_with_a_memory_is_a_chain_of_segments(rng, positions):
    """The prompt is one, each token after it another; far beyond the memory."""
    model = small(rng, positions=positions, memory_length=3)
    prompts = np.array([[1, 6, 4, 8, 9], [5, 7, 3, 3, 1]])
    found = model.generate(prompts, max_length=8)
    output, memory = segment(model, prompts)
    rows = [output[:, -1]]
    for token_ids in np.where(found.token_ids, found.token_ids, 3)[:, 0, :-1].T:
        output, memory = segment(model, token_ids[:, None], memory)
        rows.append(output[:, -1])
    for b in range(2):
        assert_greedy(found, b, np.stack(rows, axis=1)[b])


@pytest.mark.slow_on("jax")
def test_recurrent_carries_the_memory_from_batch_to_batch(rng, tmp_path):
    model = small(rng, memory_length=3)
    text = rng.integers(3, V, size=(2, 8))
    reader = model.recurrent(batch_size=2)
    segments = np.split(text, 4, axis=1)
    given = [numpy(reader(segment)) for segment in segments[:2]]
    reader.save(tmp_path / "reader.keras")
    loaded = keras.models.load_model(tmp_path / "reader.keras")
    # Compiled, and from where it was saved.
    rest = loaded.predict(np.concatenate(segments[2:]), batch_size=2, verbose=0)
    given = np.concatenate([*given, *np.split(rest, 2)], axis=1)
    np.testing.assert_allclose(given, chained(model, text, 2), atol=1e-5)


@pytest.mark.backends("tensorflow", "torch")
def test_start_begins_another_text(rng):
    model = small(rng, memory_length=3)
    reader = model.recurrent(batch_size=2)
    reader(np.array([[5, 6], [7, 8]]))
    second = np.array([[START, 6], [5, 6]])
    given, fresh = numpy(reader(second)), logits(model, second)
    np.testing.assert_allclose(given[0], fresh[0], atol=1e-6)
    assert not np.allclose(given[1], fresh[1], atol=1e-3)
    for layer in reader.layers:
        if isinstance(layer, layers.SegmentMemory):
            layer.reset()
    np.testing.assert_allclose(numpy(reader(second)), fresh, atol=1e-6)


@pytest.mark.slow_on("tensorflow", "jax")
def test_fit_trains_the_model_that_recurrent_shares_its_weights_with(rng):
    """The loss of each step is that of the chain, with the weights as they were."""
    model = small(rng, memory_length=3, dropout=0.0)
    text = rng.integers(3, V, size=(2, 9))
    batches = [(text[:, i : i + 4], text[:, i + 1 : i + 5]) for i in (0, 4)]
    loss, memory = training.MaskedCrossentropy(), None
    for inputs, labels in batches:
        output, memory = segment(model, inputs, memory)
        expected = float(numpy(loss(labels, output)))
    reader = model.recurrent(batch_size=2)
    reader.compile(keras.optimizers.SGD(0.0), loss, jit_compile=JIT)
    losses = []
    callback = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda _, logs: losses.append(logs["loss"])
    )
    x, y = (np.concatenate(arrays) for arrays in zip(*batches, strict=True))
    options = {"batch_size": 2, "shuffle": False, "verbose": 0}
    reader.fit(x, y, callbacks=[callback], **options)
    np.testing.assert_allclose(2 * losses[1] - losses[0], expected, rtol=1e-4)
    before = model.get_weights()
    reader.compile(keras.optimizers.SGD(0.1), loss, jit_compile=JIT)
    reader.fit(x, y, **options)
    assert all(
        np.abs(a - b).max() > 0
        for a, b, weight in zip(before, model.get_weights(), model.weights, strict=True)
        if weight.trainable
    )


# Models as Keras has them.


@pytest.mark.backends("tensorflow", "torch")
@pytest.mark.slow_on("tensorflow")
def test_learns_a_counting_corpus():
    """Each text counts on from any number; the model goes on from prompts unseen."""
    keras.utils.set_random_seed(1)
    model = small(vocabulary_size=14, model_dim=32, dropout=0.0)
    first = np.repeat(np.arange(10), 16)[:, None]
    numbers = 4 + (first + np.arange(8)) % 10
    rows = np.concatenate([np.full_like(first, START), numbers], axis=1)
    model.compile(
        keras.optimizers.Adam(0.02), training.MaskedCrossentropy(), jit_compile=JIT
    )
    model.fit(rows[:, :-1], rows[:, 1:], epochs=7, batch_size=40, verbose=0)
    prompts = np.array([[START, 6, 7, 0], [START, 12, 13, 4]])
    found = model.generate(prompts, max_length=4)
    assert found.token_ids[:, 0].tolist() == [[8, 9, 10, 11], [5, 6, 7, 8]]


@each_variant(
    "policy",
    named("mixed_bfloat16", "mixed_float16"),
    on_jax=[],
    on_tensorflow=[],
)
def test_mixed_precision(remembering, policy):
    mixed = small(memory_length=3, dtype=policy, num_layers=2)
    mixed.set_weights(remembering.get_weights())
    expected, real = logits(remembering), IDS != 0
    close = {"atol": 0.05 * np.abs(expected).max()}
    np.testing.assert_allclose(logits(mixed)[real], expected[real], **close)
    _, memory = segment(mixed, IDS)
    for x in memory["hidden"].values():
        assert x.dtype.name == policy.split("_")[1]
    output, _ = segment(mixed, IDS, memory)
    _, memory = segment(remembering, IDS)
    expected, _ = segment(remembering, IDS, memory)
    np.testing.assert_allclose(output[real], expected[real], **close)
    reader = mixed.recurrent(batch_size=2)
    assert np.isfinite(numpy(reader(IDS))).all()
    again = models.LanguageModel.from_config(mixed.get_config())
    assert again.dtype_policy.name == reader.dtype_policy.name == policy
    found = mixed.generate(IDS, max_length=3)
    assert np.isfinite(found.scores).all() and found.scores.dtype == "float32"


def test_a_layer_in_the_options_is_one_after_loading_too(tmp_path, rng):
    """All blocks share the bias that they were given."""
    attention = {"positions": layers.RelativeBias(num_buckets=8)}
    model = small(rng, positions=None, attention=attention, num_layers=2)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert len(loaded.trainable_weights) == len(model.trainable_weights)
    np.testing.assert_array_equal(logits(loaded), logits(model))


@pytest.mark.slow_on("jax")
def test_shared_layers_are_one():
    one, shared = small(), small(num_layers=3, share_layers=True)
    assert shared.count_params() == one.count_params()
    one.set_weights(shared.get_weights())
    assert not np.allclose(logits(one), logits(shared))


# Mistakes.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"vocabulary_size": 0}, "`vocabulary_size` must.*vocabulary_size=0"),
        ({"num_layers": 0}, "`num_layers` must.*num_layers=0"),
        ({"model_dim": 7.5}, "`model_dim` must.*model_dim=7.5"),
        ({"num_heads": 3}, "`num_heads` must divide.*num_heads=3 for width 8"),
        ({"positions": "rotating"}, "`positions` must.*'rotating'"),
        ({"stochastic_depth": 1.0}, "`stochastic_depth` must be in.*=1.0"),
        ({"end_id": V}, "`end_id` must.*end_id=11"),
        ({"memory_length": -1}, "`memory_length` must.*memory_length=-1"),
        ({"memory_length": 1.5}, "`memory_length` must.*memory_length=1.5"),
        (
            {"memory_length": 4, "positions": "sinusoidal"},
            "`positions` must be one of .*'rotary'.*'sinusoidal'",
        ),
    ],
    ids=str,
)
def test_says_what_is_wrong(arguments, message):
    with pytest.raises(ValueError, match=message):
        small(**arguments)


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([3, 4], r"`prompt_ids` must have rank 2.*\(2,\)"),
        ([[3.0]], r"`prompt_ids.0.` must be a list of integers.*=\[3.0\]"),
        ([[3], []], r"`prompt_ids` must hold at least one token.*1.=\[0\]"),
        ([[3, 4], [0, 0]], r"at least one token a row.*prompt_ids\[1\]=\[0, 0\]"),
        ([[3, 0, 4]], r"padding at the end.*prompt_ids\[0\]=\[3, 0, 4\]"),
        ([[3, 11]], r"must be in \[0, 11\).*to 11"),
        (np.zeros((2, 0), "int32"), r"`prompt_ids` must not be empty.*shape=\(2, 0\)"),
    ],
    ids=str,
)
def test_generate_says_what_is_wrong(model, prompts, message):
    with pytest.raises(ValueError, match=message):
        model.generate(prompts)


def test_the_function_refuses_prompts_that_the_method_refuses(model):
    message = "padding at the end alone.*source_ids.0.=.0, 3, 4"
    for one in (model, decoding.Ensemble([model, model])):
        with pytest.raises(ValueError, match=message):
            decoding.generate(one, [[0, 3, 4]])


@pytest.mark.slow_on("tensorflow")
def test_prompts_may_be_lists_of_unequal_lengths(model):
    lists, array = [[3, 4, 5], [6]], np.array([[3, 4, 5], [6, 0, 0]])
    found, expected = (model.generate(x, max_length=4) for x in (lists, array))
    np.testing.assert_array_equal(found.token_ids, expected.token_ids)


def test_a_model_without_memory_reads_no_segments(model):
    for call in (
        lambda: model.segment(IDS),
        lambda: model.initial_memory(2),
        lambda: model.recurrent(2),
    ):
        with pytest.raises(ValueError, match="must be positive.*memory_length=0"):
            call()


def test_recurrent_needs_a_batch_size(remembering):
    with pytest.raises(ValueError, match="`batch_size` must.*batch_size=None"):
        remembering.recurrent(None)
