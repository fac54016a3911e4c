"""The measured decoders: ours, and the cached searches of three other libraries.

Every function takes a `Shape` with one table for source, target and output, builds a
model with random weights, and returns its parameter count and `prepare(source_ids,
width)`. That returns two functions. The first, without arguments, translates the batch
by a beam search of that width, or greedily at width 1. The second counts the tokens in
what the first returns: `shape.length` a sentence, as no system may end one earlier.
Only the first is timed; each library's input is made beforehand.
Shapes: B sentences, S source tokens, L generated tokens, W beams.
"""

import functools
import tempfile
import time

import numpy as np

from benchmarks.shapes import END_ID, PAD_ID, START_ID

THREADS = 2
# What the array that KerasHub's samplers write into holds before: the id of no token.
UNUSED = -1
# CTranslate2 computes one batch with all threads, or one with each thread: the faster
# of the two is measured.
CTRANSLATE2_THREADS = (
    {"inter_threads": 1, "intra_threads": THREADS},
    {"inter_threads": THREADS, "intra_threads": 1},
)


def ours(shape):
    """Builds `TranslationTransformer` and its `generate`."""
    from benchmarks import peers
    from keras_seqattn import decoding

    model = peers.ours(shape)

    def prepare(source_ids, width):
        search = search_of(width, min_length=shape.length)

        def run():
            return decoding.generate(model, source_ids, search, shape.length)

        return run, lambda found: int(found.lengths.sum())

    return model.count_params(), prepare


def search_of(width, **options):
    """Returns our search of a width.

    Beam search stops as in CTranslate2 and Hugging Face, when as many hypotheses as
    beams have ended; our default searches on. Greedy search computes no scores, since
    no peer is asked for them.
    """
    from keras_seqattn import decoding

    if width == 1:
        return decoding.Greedy(scored=False, **options)
    return decoding.BeamSearch(width=width, patience=1.0, **options)


def keras_hub(shape):
    """Builds KerasHub's blocks, samplers and caches into one XLA program.

    The loop is that of its `BartSeq2SeqLM.generate_step`, with two changes in its
    favour: the caches of the layers are not stacked into one tensor, and the encoder's
    output is repeated once for the beams, not gathered at every step.
    """
    import tensorflow as tf

    model = KerasHubTranslation(shape)

    def prepare(source_ids, width):
        # No token ends a sentence, but the test for one costs what it costs any user.
        stop = (shape.vocabulary_size,)
        generate = tf.function(
            lambda ids: model.generate(ids, width, stop), jit_compile=True
        )
        source_ids = tf.constant(source_ids)
        count = functools.partial(count_after_start, unused=UNUSED)
        return lambda: generate(source_ids).numpy(), count

    return model.parameters, prepare


class KerasHubTranslation:
    """An encoder-decoder of `keras_hub.layers` with a cached decoding step."""

    def __init__(self, shape):
        import keras
        from keras_hub import layers

        options = dict(
            intermediate_dim=shape.intermediate_dim,
            num_heads=shape.num_heads,
            normalize_first=True,
        )
        self.shape = shape
        self.table = keras.layers.ReversibleEmbedding(
            shape.vocabulary_size, shape.model_dim
        )
        self.positions = layers.SinePositionEncoding()
        self.encoder = [
            layers.TransformerEncoder(**options) for _ in range(shape.encoder_layers)
        ]
        self.decoder = [
            layers.TransformerDecoder(**options) for _ in range(shape.decoder_layers)
        ]
        self.norms = [keras.layers.LayerNormalization() for _ in range(2)]
        self.generate(np.full((1, 2), END_ID, "int32"), 1, None)  # builds the layers
        first, second = self.norms
        self._parts = [self.table, *self.encoder, first, *self.decoder, second]
        self.parameters = sum(part.count_params() for part in self._parts)

    def take_weights(self, model):
        """Takes the weights of a `benchmarks.peers.keras_hub` of the same shape."""
        theirs = (layer for layer in model.layers if layer.weights)
        for part, layer in zip(self._parts, theirs, strict=True):
            part.set_weights(layer.get_weights())

    def generate(self, source_ids, width, stop_token_ids):
        """Returns the start token and the generated tokens, `(B, 1 + L)`.

        Where all rows have ended earlier, the rest is `UNUSED`.
        """
        from keras import ops
        from keras_hub.samplers import BeamSampler, GreedySampler

        rows, length = source_ids.shape[0], 1 + self.shape.length
        memory, mask = self.encode(source_ids)
        prompt = np.full((rows, length), UNUSED, "int32")
        prompt[:, 0] = START_ID
        caches, crossed = self.first_caches(memory, mask, prompt)
        memory, mask, *crossed = (
            ops.repeat(x, width, axis=0) for x in (memory, mask, *crossed)
        )

        def following(prompt, caches, index):
            token = ops.slice(prompt, (0, index - 1), (rows * width, 1))
            logits, caches, _ = self.decode(
                token, memory, mask, caches, crossed, index - 1
            )
            return ops.squeeze(logits, axis=1), None, caches

        sampler = GreedySampler() if width == 1 else BeamSampler(num_beams=width)
        return sampler(
            following,
            ops.convert_to_tensor(prompt),
            cache=caches,
            index=1,
            mask=prompt != UNUSED,
            stop_token_ids=stop_token_ids,
        )

    def encode(self, source_ids):
        """Returns the hidden states of the source, and which of them are real."""
        from keras import ops

        mask = ops.not_equal(source_ids, PAD_ID)
        x = self.embed(source_ids)
        for block in self.encoder:
            x = block(x, padding_mask=mask)
        return self.norms[0](x), mask

    def first_caches(self, memory, mask, prompt):
        """Runs the start token, which fills the caches of cross-attention."""
        from keras import ops

        key_dim = self.shape.model_dim // self.shape.num_heads

        def empty(length):
            size = (prompt.shape[0], 2, length, self.shape.num_heads, key_dim)
            return [ops.zeros(size) for _ in self.decoder]

        _, caches, crossed = self.decode(
            prompt[:, :1],
            memory,
            mask,
            empty(prompt.shape[1]),
            empty(memory.shape[1]),
            index=0,
            cross_index=0,
        )
        return caches, crossed

    def decode(self, token, memory, mask, caches, crossed, index, cross_index=None):
        """Runs one token of each row, `(B W, 1)`, through the cached decoder."""
        x, new_caches, new_crossed = self.embed(token, index), [], []
        for block, cache, cross in zip(self.decoder, caches, crossed, strict=True):
            x, cache, cross = block(
                x,
                memory,
                encoder_padding_mask=mask,
                self_attention_cache=cache,
                self_attention_cache_update_index=index,
                cross_attention_cache=cross,
                cross_attention_cache_update_index=cross_index,
            )
            new_caches.append(cache)
            new_crossed.append(cross)
        return self.table(self.norms[1](x), reverse=True), new_caches, new_crossed

    def embed(self, token_ids, start=0):
        """Returns the vectors of tokens at position `start` and after."""
        x = self.table(token_ids) * self.shape.model_dim**0.5
        return x + self.positions(x, start_index=start)


def count_after_start(token_ids, unused):
    """Counts the tokens after the start token; `unused` fills the rest of a row."""
    return int((token_ids[:, 1:] != unused).sum())


def marian(shape):
    """Builds Hugging Face's `MarianMTModel`, whose norms come after the sublayers."""
    import torch
    from transformers import MarianConfig, MarianMTModel

    torch.set_num_threads(THREADS)
    config = MarianConfig(
        vocab_size=shape.vocabulary_size,
        d_model=shape.model_dim,
        encoder_layers=shape.encoder_layers,
        decoder_layers=shape.decoder_layers,
        encoder_ffn_dim=shape.intermediate_dim,
        decoder_ffn_dim=shape.intermediate_dim,
        encoder_attention_heads=shape.num_heads,
        decoder_attention_heads=shape.num_heads,
        activation_function="relu",
        scale_embedding=True,
        max_position_embeddings=2 * shape.length,
        pad_token_id=PAD_ID,
        bos_token_id=START_ID,
        eos_token_id=END_ID,
        decoder_start_token_id=START_ID,
        forced_eos_token_id=None,
    )
    model = MarianMTModel(config).eval()
    parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    # After post-norm blocks no norm closes the stacks; the other systems have two.
    parameters += 2 * 2 * shape.model_dim

    def prepare(source_ids, width):
        input_ids = torch.from_numpy(source_ids.astype("int64"))
        options = dict(
            attention_mask=(input_ids != PAD_ID).long(),
            num_beams=width,
            do_sample=False,
            min_new_tokens=shape.length,
            max_new_tokens=shape.length,
        )

        def run():
            with torch.inference_mode():
                return model.generate(input_ids, **options).numpy()

        return run, functools.partial(count_after_start, unused=PAD_ID)

    return parameters, prepare


def ctranslate2(shape, precision):
    """Builds a CTranslate2 model, computed in "float32" or "int8"."""
    import ctranslate2

    specification = _specification(shape)
    parameters = _size(specification)
    with tempfile.TemporaryDirectory() as folder:
        specification.validate()
        specification.save(folder)
        together, apart = (
            ctranslate2.Translator(folder, compute_type=precision, **threads)
            for threads in CTRANSLATE2_THREADS
        )
    names = _names(shape)

    def prepare(source_ids, width):
        lines = [[names[token] for token in row] for row in source_ids]
        options = dict(
            beam_size=width,
            min_decoding_length=shape.length,
            max_decoding_length=shape.length,
        )
        share = -(-len(lines) // THREADS)
        run = quickest(
            lambda: together.translate_batch(lines, **options),
            lambda: apart.translate_batch(lines, max_batch_size=share, **options),
        )
        return run, count_tokens

    return parameters, prepare


def quickest(*functions):
    """Returns the function whose second call takes the least time."""

    def seconds(function):
        function()
        start = time.perf_counter()
        function()
        return time.perf_counter() - start

    return min(functions, key=seconds)


def count_tokens(found):
    """Counts the tokens that CTranslate2 generated."""
    return sum(len(one.hypotheses[0]) for one in found)


LIBRARIES = {
    "ours": ours,
    "kerashub": keras_hub,
    "marian": marian,
    "ctranslate2": ctranslate2,
}


def _names(shape):
    """Returns a name for each token of the vocabulary, as CTranslate2 needs them."""
    special = ["<pad>", "<s>", "</s>", "<unk>"]
    return [*special, *(f"t{i}" for i in range(len(special), shape.vocabulary_size))]


def _specification(shape):
    """Fills a pre-norm Transformer of CTranslate2 with random weights."""
    from ctranslate2.specs import TransformerSpec

    random = np.random.default_rng(0)
    width, hidden = shape.model_dim, shape.intermediate_dim

    def weights(*size):
        return random.normal(scale=width**-0.5, size=size).astype("float32")

    def fill(norm, *linears):
        norm.gamma, norm.beta = np.ones(width, "float32"), np.zeros(width, "float32")
        for linear, outputs, inputs in linears:
            linear.weight = weights(outputs, inputs)
            linear.bias = np.zeros(outputs, "float32")

    layers = shape.encoder_layers, shape.decoder_layers
    specification = TransformerSpec.from_config(layers, shape.num_heads, pre_norm=True)
    encoder, decoder = specification.encoder, specification.decoder
    for layer in (*encoder.layer, *decoder.layer):
        own, feed_forward = layer.self_attention, layer.ffn
        project, output = own.linear
        fill(own.layer_norm, (project, 3 * width, width), (output, width, width))
        up = feed_forward.linear_0, hidden, width
        down = feed_forward.linear_1, width, hidden
        fill(feed_forward.layer_norm, up, down)
    for layer in decoder.layer:
        query, memory, output = layer.attention.linear
        square = (query, width, width), (output, width, width)
        fill(layer.attention.layer_norm, *square, (memory, 2 * width, width))
    table, positions = weights(shape.vocabulary_size, width), weights(512, width)
    for stack in (encoder, decoder):
        fill(stack.layer_norm)
        stack.position_encodings.encodings = positions
    for tied in (*encoder.embeddings, decoder.embeddings, decoder.projection):
        tied.weight = table
    specification.register_source_vocabulary(_names(shape))
    specification.register_target_vocabulary(_names(shape))
    return specification


def _size(specification):
    """Counts the weights of a specification, shared ones once, positions not at all."""
    arrays = {
        id(value): value.size
        for name, value in specification.variables().items()
        if isinstance(value, np.ndarray) and not name.endswith("/encodings")
    }
    return sum(arrays.values())
