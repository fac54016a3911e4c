"""The measured Keras models: ours, KerasHub's layers, and keras.layers alone.

Every function takes a `Shape` and returns a functional model from source and target ids
to logits. Peers are built as their documentation shows, with explicit padding masks. No
system needs to mask the padding of the target: the causal mask hides it.
"""

import time

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from benchmarks.shapes import PAD_ID


def ours(shape):
    """Builds `keras_seqattn.models.TranslationTransformer`."""
    from keras_seqattn.models import TranslationTransformer

    model = TranslationTransformer(
        shape.vocabulary_size,
        None if shape.tied else shape.vocabulary_size,
        model_dim=shape.model_dim,
        num_heads=shape.num_heads,
        encoder_layers=shape.encoder_layers,
        decoder_layers=shape.decoder_layers,
        intermediate_dim=shape.intermediate_dim,
        dropout=shape.dropout,
        attention_dropout=shape.attention_dropout,
        tie_embeddings=shape.tied,
    )
    for layer in model.layers:
        if hasattr(layer, "gradient_checkpointing"):
            layer.gradient_checkpointing = shape.gradient_checkpointing
    return model


def keras_hub(shape):
    """Builds the model of KerasHub's `TransformerEncoder` and `TransformerDecoder`.

    They have one dropout rate for everything, so `attention_dropout` does not apply.
    """
    from keras_hub.layers import (
        SinePositionEncoding,
        TransformerDecoder,
        TransformerEncoder,
    )

    source_ids, target_ids, mask = _inputs()
    embed_source, embed_target, project = _tables(shape)
    options = dict(
        intermediate_dim=shape.intermediate_dim,
        num_heads=shape.num_heads,
        dropout=shape.dropout,
        normalize_first=True,
    )

    def embed(table, token_ids):
        x = table(token_ids) * shape.model_dim**0.5
        return layers.Dropout(shape.dropout)(x + SinePositionEncoding()(x))

    x = embed(embed_source, source_ids)
    for _ in range(shape.encoder_layers):
        x = TransformerEncoder(**options)(x, padding_mask=mask)
    memory = layers.LayerNormalization()(x)
    y = embed(embed_target, target_ids)
    for _ in range(shape.decoder_layers):
        y = TransformerDecoder(**options)(y, memory, encoder_padding_mask=mask)
    logits = project(layers.LayerNormalization()(y))
    return keras.Model([source_ids, target_ids], logits)


def keras_layers(shape):
    """Builds the model of `keras.layers` only, around its `MultiHeadAttention`."""
    source_ids, target_ids, mask = _inputs()
    embed_source, embed_target, project = _tables(shape)
    table = _sinusoids(shape.length, shape.model_dim)

    def drop(x):
        return layers.Dropout(shape.dropout)(x)

    def attend(x, value=None, **masks):
        y = layers.LayerNormalization()(x)
        attention = layers.MultiHeadAttention(
            shape.num_heads,
            shape.model_dim // shape.num_heads,
            dropout=shape.attention_dropout,
        )
        return x + drop(attention(y, y if value is None else value, **masks))

    def feed_forward(x):
        y = layers.LayerNormalization()(x)
        y = layers.Dense(shape.intermediate_dim, activation="relu")(y)
        return x + drop(layers.Dense(shape.model_dim)(y))

    x = drop(embed_source(source_ids) * shape.model_dim**0.5 + table)
    for _ in range(shape.encoder_layers):
        x = feed_forward(attend(x, value_mask=mask))
    memory = layers.LayerNormalization()(x)
    y = drop(embed_target(target_ids) * shape.model_dim**0.5 + table)
    for _ in range(shape.decoder_layers):
        y = attend(y, use_causal_mask=True)
        y = feed_forward(attend(y, memory, value_mask=mask))
    logits = project(layers.LayerNormalization()(y))
    return keras.Model([source_ids, target_ids], logits)


def _inputs():
    """Makes the two inputs, named as ours, and the mask of the source."""
    source_ids = keras.Input((None,), dtype="int32", name="source_ids")
    target_ids = keras.Input((None,), dtype="int32", name="target_ids")
    return source_ids, target_ids, ops.not_equal(source_ids, PAD_ID)


def _tables(shape):
    """Makes source table, target table and output projection; tied, they are one."""
    size = shape.vocabulary_size, shape.model_dim
    if shape.tied:
        table = layers.ReversibleEmbedding(*size)
        return table, table, lambda x: table(x, reverse=True)
    project = layers.Dense(shape.vocabulary_size, use_bias=False)
    return layers.Embedding(*size), layers.Embedding(*size), project


def _sinusoids(length, dim):
    angle = np.arange(length)[:, None] / 10000.0 ** (np.arange(0, dim, 2) / dim)
    return np.stack([np.sin(angle), np.cos(angle)], -1).reshape(length, dim).astype("f")


MODELS = {"ours": ours, "kerashub": keras_hub, "keras": keras_layers}


def compiled(library, shape, jit_compile="auto", metered=False):
    """Builds and compiles a library's model with Adam and a loss over real tokens.

    Ours smooths the labels by 0.1; Keras's sparse crossentropy cannot.
    """
    model = MODELS[library](shape)
    if library == "ours":
        from keras_seqattn.training import Adam, MaskedCrossentropy

        loss, optimizer = MaskedCrossentropy(label_smoothing=0.1), Adam(1e-3)
    else:
        loss = keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction="mean_with_sample_weight"
        )
        optimizer = keras.optimizers.Adam(1e-3)
    metrics = []
    if metered:
        from keras_seqattn.training import TokenCrossentropy

        metrics.append(TokenCrossentropy())
    model.compile(optimizer, loss, metrics=metrics, jit_compile=jit_compile)
    return model


def parameter_count(model):
    """Counts the trainable parameters of a model."""
    return sum(int(np.prod(v.shape)) for v in model.trainable_variables)


def example(library, inputs, labels):
    """Arranges a batch, or a stack of batches, as `fit` takes it for the library.

    The peers get the weights of the real tokens with the data, which is cheaper for
    them than a mask or `ignore_class`.
    """
    if library == "ours":
        return inputs, labels
    return inputs, labels, tf.cast(labels != PAD_ID, "float32")


class Stopwatch(keras.callbacks.Callback):
    """Measures the seconds from the beginning of `fit` to the end of its last step.

    What follows does not count: after a step, tf.data sometimes takes seconds to
    release an iterator, whatever the model.
    """

    def on_train_begin(self, logs=None):
        """Starts the watch."""
        self.start = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        """Reads the watch."""
        self.seconds = time.perf_counter() - self.start


def timed_fit(model, data, **options):
    """Fits the model silently; returns the seconds and the last loss."""
    stopwatch = Stopwatch()
    history = model.fit(data, verbose=0, callbacks=[stopwatch], **options)
    return stopwatch.seconds, history.history["loss"][-1]


def trainer(library, shape, batches, jit_compile, metered=False):
    """Builds the model; returns its parameter count and a function of steps to run.

    With `metered`, ours also computes the unsmoothed crossentropy of what it trains on.
    """
    model = compiled(library, shape, jit_compile, metered)
    source_ids, target_ids, labels = batches
    inputs = {"source_ids": source_ids, "target_ids": target_ids}
    data = tf.data.Dataset.from_tensor_slices(example(library, inputs, labels))
    data = data.repeat().prefetch(2)

    def run(steps):
        return timed_fit(model, data, steps_per_epoch=steps)

    return parameter_count(model), run
