"""A translator as a TensorFlow SavedModel: strings in, strings out.

Shapes: B lines searched together, S source length, N hypotheses, L generated length.
"""

import base64
import functools
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import keras
from keras import ops

from keras_seqattn import arguments
from keras_seqattn.decoding import Greedy, loop
from keras_seqattn.decoding.hypotheses import SpecialTokens
from keras_seqattn.decoding.methods import SEED_STEP, checked_search
from keras_seqattn.decoding.protocol import check_model, length_limit
from keras_seqattn.scheduling.generation import check_coverage, token_limit
from keras_seqattn.scheduling.static import Sentences, begin_search
from keras_seqattn.text import ByteTokenizer, SentencePieceTokenizer

if TYPE_CHECKING:
    from keras_seqattn.translator import Translator


IN_GRAPHS = (SentencePieceTokenizer, ByteTokenizer)  # tokenizers that run in a graph
# The shortest length that sources are padded to; each further one is twice as long, the
# longest is `max_length`.
SHORTEST = 16
# Matches what `str.strip` takes for space, which is more than TensorFlow's `strip`.
ONLY_SPACE = r"[\t-\r\x1c-\x1f\x{85}\p{Z}]*"

# What a `Translator` strips from the end of a line.
LINE_BREAKS = r"[\r\n]+\z"


def prepare(
    translator: "Translator",
    path: pathlib.Path,
    batch_size: int = 16,
    max_length: int | None = None,
    jit_compile: bool = False,
) -> Callable[[pathlib.Path], None]:
    """Returns the function that writes a SavedModel to the path it is given.

    It holds model, tokenizers and search; `keras_seqattn.export` shows how a program
    loads it. The signature `serving_default` takes `lines`, strings `(lines,)`, and
    returns `translations`, strings `(lines,)`, and `scores`, float32 `(lines,)`. So
    TensorFlow Serving's REST call is `{"instances": ["Two dogs.", ""]}` or `{"inputs":
    {"lines": [...]}}`. Translations are those of `translator(lines)`: an empty line
    becomes "" with score 0, and the line break at the end of a line does not count. A
    line of more than `max_length` tokens, by default the translator's
    `max_source_length`, is cut there, silently.

    Lines are sorted by length and searched `batch_size` at a time; the last batch is
    filled up. Sources are padded to a power of 2 of tokens, or to `max_length`. There
    is one graph for each of these lengths, and preparing it takes some seconds.
    TensorFlow Serving can run searches compiled by `jit_compile` only when started with
    `--xla_cpu_compilation_enabled`. `Translator.export` says what the options mean;
    `max_length` counts the end token of a source.
    """
    batch_size = arguments.positive_integer("batch_size", batch_size)
    jit_compile = arguments.boolean("jit_compile", jit_compile)
    model = translator.model
    arguments.integer(
        "max_length", max_length, least=2, most=length_limit(model), optional=True
    )
    backend = keras.backend.backend()
    if backend != "tensorflow":
        raise ValueError(
            '`format` must not be "saved_model" on this backend: a SavedModel holds '
            "TensorFlow's graphs. Save the translator, and load and export it under "
            f"KERAS_BACKEND=tensorflow. Received: backend {backend!r}."
        )
    for side in ("source", "target"):
        tokenizer = getattr(translator, f"{side}_tokenizer")
        if type(tokenizer) not in IN_GRAPHS:  # A subclass may tokenize otherwise.
            raise ValueError(
                f"`{side}_tokenizer` must be one of {[x.__name__ for x in IN_GRAPHS]}, "
                "which run in a graph. "
                f"Received: {side}_tokenizer of class {type(tokenizer).__name__}."
            )
    forced = list(getattr(translator.target_tokenizer, "prefix_ids", ()))
    if forced:
        raise ValueError(
            "`target_tokenizer` must have no `prefix_ids`: a SavedModel forces no "
            f"first tokens. Received: target_tokenizer.prefix_ids={forced!r}."
        )
    check_coverage(model, checked_search("search", translator.search))
    import tensorflow as tf

    if not isinstance(model, keras.Layer | tf.Module):
        arguments.refuse("model", model, "a Keras model for a SavedModel")

    max_length = max_length or translator.max_source_length
    graphs = _Graphs(translator, batch_size, max_length, jit_compile)
    archive = keras.export.ExportArchive()
    archive.track(model)
    signature = [tf.TensorSpec((None,), tf.string, name="lines")]
    archive.add_endpoint("serving_default", graphs.best, input_signature=signature)
    if graphs.search.num_hypotheses > 1:
        archive.add_endpoint("n_best", graphs.n_best, input_signature=signature)
    return lambda folder: archive.write_out(str(folder), verbose=False)


class _Graphs:
    """The functions of a SavedModel, as TensorFlow traces them."""

    def __init__(self, translator, batch_size, max_length, jit_compile):
        import tensorflow as tf

        self.model = translator.model
        self.search = translator.search or Greedy()
        self._source = translator.source_tokenizer
        self._target = translator.target_tokenizer
        self._batch_size, self._max_length = batch_size, max_length
        # By the length of a source: the largest number of generated tokens.
        self._limits = [int(token_limit(self.model, n)) for n in range(max_length + 1)]
        lengths = _source_lengths(max_length)
        check_model(
            self.model,
            (batch_size, lengths[0]),
            self._capacity(lengths[0]),
            self.search.width,
            self.search.needs_coverage,
        )
        rows = tf.TensorSpec((batch_size,), tf.int32)
        self._searches = {
            length: tf.function(
                self._search, jit_compile=jit_compile, autograph=False
            ).get_concrete_function(
                tf.TensorSpec((batch_size, length), tf.int32), rows, rows
            )
            for length in lengths
        }

    def best(self, lines):
        """Returns the best translation of each line, and its score."""
        return {name: x[:, 0] for name, x in self.n_best(lines).items()}

    def n_best(self, lines):
        """Returns the hypotheses of each line, best first, and their scores."""
        import tensorflow as tf

        lines = tf.strings.regex_replace(lines, LINE_BREAKS, "")
        size, count = self._batch_size, self.search.num_hypotheses
        filled = tf.where(~tf.strings.regex_full_match(lines, ONLY_SPACE))[:, 0]
        source_ids, lengths = self._source_ids(tf.gather(lines, filled))
        order = tf.argsort(lengths, stable=True)
        missing = -tf.size(order) % size
        rows = tf.reshape(tf.pad(order, [[0, missing]], constant_values=-1), (-1, size))
        translate = functools.partial(
            self._translate_batch, source_ids, lengths, filled, self._seed()
        )
        spec = (
            tf.TensorSpec((size, count), tf.string),
            tf.TensorSpec((size, count), tf.float32),
        )
        found = tf.map_fn(
            translate, rows, fn_output_signature=spec, parallel_iterations=1
        )
        places = tf.gather(filled, order)[:, None]
        shape = tf.stack([tf.size(lines, tf.int64), count])
        texts, scores = (
            tf.scatter_nd(places, tf.reshape(x, (-1, count))[: tf.size(order)], shape)
            for x in found
        )
        return {"translations": texts, "scores": scores}

    def _source_ids(self, lines):
        """Returns source ids `(lines, max_length)` with their ends, and lengths."""
        import tensorflow as tf

        model = self.model
        ids = tf.cast(self._source.tokenize(lines), tf.int32)
        ids = ids[:, : self._max_length - 1]
        ends = tf.fill((tf.size(lines), 1), model.end_id)
        ids = tf.concat([ids, ends], axis=1)
        padded = ids.to_tensor(model.pad_id, shape=(None, self._max_length))
        return padded, tf.cast(ids.row_lengths(), tf.int32)

    def _seed(self):
        """Returns the seed of the searches of one call."""
        import tensorflow as tf

        # `draw_seed` would draw once, for all calls, while the program is traced. A
        # search without the attribute does not use its seed.
        if getattr(self.search, "seed", 0) is None:
            return tf.random.uniform((), maxval=2**31 - 1, dtype=tf.int64)
        return tf.constant(self.search.draw_seed(), tf.int64)

    def _translate_batch(self, source_ids, lengths, numbers, seed, rows):
        """Translates the lines of some rows; row -1 only fills the batch."""
        import tensorflow as tf

        real, rows = rows >= 0, tf.maximum(rows, 0)
        lengths = tf.gather(lengths, rows)
        source_ids = tf.gather(source_ids, rows)
        limits = tf.where(real, tf.gather(self._limits, lengths), 0)
        # As `sequence_seeds` does, in a graph.
        seeds = tf.gather(numbers, rows) * SEED_STEP + seed
        given = limits, tf.cast(seeds, tf.int32)
        bucket = tf.searchsorted(list(self._searches), [tf.reduce_max(lengths)])[0]
        branches = [
            functools.partial(self._texts, search, source_ids[:, :length], *given)
            for length, search in self._searches.items()
        ]
        return tf.switch_case(bucket, branches)

    def _texts(self, search, source_ids, limits, seeds):
        """Returns the texts `(B, N)` for source ids `(B, S)`, and their scores."""
        import tensorflow as tf

        token_ids, scores = search(source_ids, limits, seeds)
        batch_size, count, length = token_ids.shape
        rows = tf.reshape(token_ids, (-1, length))
        over = (rows == self.model.end_id) | (rows == self.model.pad_id)
        kept = tf.cumsum(tf.cast(over, tf.int32), axis=1) == 0
        texts = _detokenize(self._target, tf.ragged.boolean_mask(rows, kept))
        # As `bytes.decode(errors="replace")` does: a model may generate any bytes.
        texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8")
        return tf.reshape(texts, (batch_size, count)), scores

    def _search(self, source_ids, limits, seeds):
        """Returns token ids `(B, N, L)`, ends included, and scores `(B, N)`."""
        model, search = self.model, self.search
        tokens = SpecialTokens(model.start_id, model.end_id, model.pad_id)
        capacity = self._capacity(source_ids.shape[1])
        prefix = ops.zeros((source_ids.shape[0], 0), "int32")
        sentences = Sentences(source_ids, limits, seeds, prefix)
        state = begin_search(model, search, tokens, sentences, capacity, capacity)
        state = loop.run(search, model.step, state, tokens)
        return search.results(state.search_state)

    def _capacity(self, length):
        """Returns the most generated tokens of any source of up to a length."""
        return max(1, *self._limits[: length + 1])


def _source_lengths(max_length):
    """Returns the lengths that sources are padded to."""
    lengths = [SHORTEST]
    while lengths[-1] < max_length:
        lengths.append(2 * lengths[-1])
    return [*lengths[:-1], max_length]


def _detokenize(tokenizer, ids):
    """Returns the bytes of the strings that ragged token ids stand for, in a graph."""
    import tensorflow as tf

    if isinstance(tokenizer, ByteTokenizer):
        offset = tokenizer.vocabulary_size - 256
        ids = tf.ragged.boolean_mask(ids, ids >= offset)
        characters = tf.constant([bytes([byte]) for byte in range(256)])
        return tf.strings.reduce_join(tf.gather(characters, ids - offset), axis=-1)
    import tensorflow_text

    model = base64.b64decode(tokenizer.get_config()["model"])
    return tensorflow_text.SentencepieceTokenizer(model).detokenize(ids)
