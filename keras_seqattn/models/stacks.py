"""What the Transformer models are stacked from, and how they are configured.

Shapes: D model_dim, V vocabulary.
"""

from keras_seqattn import arguments
from keras_seqattn.layers import (
    PositionalEmbedding,
    TokenLogits,
    TransformerStack,
)
from keras_seqattn.layers.transformer.encoder_block import (
    attention_config,
    attention_from_config,
)
from keras_seqattn.layers.transformer.residual import make_norm
from keras_seqattn.layers.weights.lora import enable_lora
from keras_seqattn.layers.weights.quantization import dtype_config, quantize_composites

# Names of positions that stand inside attention, not on the embedding.
POSITIONS_IN_ATTENTION = ("rotary", "alibi", "relative")
BLOCK_OPTIONS = (
    "num_heads",
    "intermediate_dim",
    "key_dim",
    "dropout",
    "attention_dropout",
    "activation_dropout",
    "activation",
    "gated",
    "norm",
    "normalize_first",
    "attention",
)
_NAMES_OF_KERAS = ("name", "dtype", "trainable")


def _optional_size(name, value):
    return arguments.positive_integer(name, value, optional=True)


def _attention(name, value):
    return arguments.instance(name, value, dict, "a dict", optional=True)


def _activation(name, value):
    arguments.keras_object(name, value)
    return value


# How each option that several models or several layers of a model have is checked; what
# one layer alone takes under the same name, that layer checks.
_CHECKS = {
    **dict.fromkeys(
        (
            "vocabulary_size",
            "source_vocabulary_size",
            "model_dim",
            "num_heads",
            "num_layers",
            "encoder_layers",
            "decoder_layers",
            "intermediate_dim",
        ),
        arguments.positive_integer,
    ),
    **dict.fromkeys(
        (
            "target_vocabulary_size",
            "num_classes",
            "max_length",
            "key_dim",
            "attention_units",
        ),
        _optional_size,
    ),
    **dict.fromkeys(
        ("dropout", "attention_dropout", "activation_dropout", "stochastic_depth"),
        arguments.fraction,
    ),
    **dict.fromkeys(
        ("gated", "normalize_first", "share_layers", "tie_embeddings"),
        arguments.boolean,
    ),
    "activation": _activation,
    "attention": _attention,
}


class Configured:
    """A model whose configuration is its constructor's arguments.

    A mixin of `keras.Model`; the model calls `configure` when it is made.
    """

    def configure(self, options, dtype):
        """Keeps what `get_config` gives.

        Args:
            options: Dict of the constructor's arguments.
            dtype: The dtype policy, which Keras's functional models drop; without it
                a mixed model is saved as float32, and float16 has no loss scale.
        """
        self._options = options
        if dtype is not None:
            self.dtype_policy = dtype

    @property
    def layers(self):
        """The layers of the graph, of a stack its blocks and its norm.

        So a file has the blocks' weights where they were before there were stacks, and
        `get_layer` finds a block by its name.
        """
        return [
            part
            for layer in super().layers
            for part in (
                layer.parts if isinstance(layer, TransformerStack) else [layer]
            )
        ]

    def make_train_function(self, force=False):
        """Makes what `fit` runs, the optimizer's variables first.

        Made while TensorFlow traces a step they have it traced a second time, and the
        first step takes twice as long.
        """
        if not self.optimizer.built:
            self.optimizer.build(self.trainable_variables)
        return super().make_train_function(force)

    def quantize(self, mode=None, config=None, filters=None, **kwargs):
        """Quantizes the weights as Keras does, and the tables of embeddings with them.

        Args:
            mode: As in `keras.Model.quantize`; so are the other arguments.
            config: A `keras.quantizers.QuantizationConfig`, or None.
            filters: Which layers, by their names or a function; None for all.
            **kwargs: `type_check`.
        """
        super().quantize(mode, config=config, filters=filters, **kwargs)
        quantize_composites(self, mode, config, filters)
        self.train_function = self.test_function = self.predict_function = None

    def get_config(self):
        """Returns the constructor's arguments."""
        options = attention_config(self._options)
        config = {"name": self.name, "dtype": dtype_config(self), **options}
        lora = getattr(self, "lora_options", None)
        return config if lora is None else {**config, "lora": dict(lora)}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        """Makes the model from its constructor's arguments."""
        if "attention" in config:
            attention = attention_from_config(config["attention"])
            config = {**config, "attention": attention}
        lora = config.get("lora")
        model = cls(**{name: config[name] for name in config if name != "lora"})
        if lora is not None:
            enable_lora(model, **lora)
        return model


def checked_options(model, options, given):
    """Returns a model's options as plain Python, each checked.

    Args:
        model: The model's class.
        options: Dict of the arguments in its constructor's signature.
        given: Dict of its further keyword arguments, for Keras.

    Returns:
        A dict like `options`.

    Raises:
        ValueError: If `given` has a name that Keras does not know, or an option is out
            of range.

    Example:
        >>> checked_options(Configured, {"model_dim": 8}, {"name": "small"})
        {'model_dim': 8}
    """
    names = (*arguments.names_of(model), *_NAMES_OF_KERAS)
    arguments.known(given, names, model.__name__)
    options = {
        name: _CHECKS[name](name, value) if name in _CHECKS else value
        for name, value in options.items()
    }
    sizes = [size for name, size in options.items() if name.endswith("vocabulary_size")]
    smallest = min((size for size in sizes if size is not None), default=0)
    for name in ("start_id", "end_id", "pad_id"):
        if name in options:
            arguments.integer(name, options[name], 0, smallest - 1)
    return options


def embedding_positions(positions):
    """Returns the positions that the embedding adds: none where attention has them.

    Args:
        positions: A model's argument: a name, a layer or None.

    Returns:
        `positions`, or None.

    Example:
        >>> embedding_positions("rotary"), embedding_positions("sinusoidal")
        (None, 'sinusoidal')
    """
    inside = isinstance(positions, str) and positions in POSITIONS_IN_ATTENTION
    return None if inside else positions


def make_embedding(options, name, vocabulary_size, dtype):
    """Makes an embedding, with the positions that do not stand inside attention.

    Args:
        options: Dict of a model's constructor arguments.
        name: The layer's name.
        vocabulary_size: Number of token ids V.
        dtype: The layer's dtype policy.

    Returns:
        A `PositionalEmbedding`.

    Example:
        >>> options = {"model_dim": 8, "positions": "rotary", "max_length": None,
        ...            "dropout": 0.0, "pad_id": 0}
        >>> make_embedding(options, "tokens", 11, None).positions is None
        True
    """
    return PositionalEmbedding(
        vocabulary_size,
        options["model_dim"],
        positions=embedding_positions(options["positions"]),
        max_length=options["max_length"],
        dropout=options["dropout"],
        mask_zero=options["pad_id"] == 0,
        name=name,
        dtype=dtype,
    )


class Logits:
    """Turns vectors into logits, by the embedding's own table or by another.

    Args:
        embedding: A `PositionalEmbedding` of the tokens that are scored.
        options: Dict of a model's constructor arguments.
        dtype: Dtype policy of another table.

    Call arguments:
        x: Float tensor `(..., D)`.
        shared: What `shared` gave, or None.

    Returns:
        Float tensor `(..., V)`.

    Example:
        >>> import numpy as np
        >>> logits = Logits(PositionalEmbedding(11, 8), {"tie_embeddings": True}, None)
        >>> tuple(logits(np.ones((2, 8), "float32")).shape)
        (2, 11)
    """

    def __init__(self, embedding, options, dtype):
        self._embedding = embedding if options["tie_embeddings"] else None
        if self._embedding is None:
            size = embedding.vocabulary_size
            self._output = TokenLogits(size, name="output", dtype=dtype)

    def __call__(self, x, shared=None):
        """Computes the logits of `x`."""
        if self._embedding is None:
            return self._output(x)
        return self._embedding.logits(x, **(shared or {}))

    def shared(self):
        """Returns what all calls of a search share, as a dict of tensors."""
        if self._embedding is None:
            return {}
        kernel = self._embedding.logits_kernel()
        return {} if kernel is None else {"kernel": kernel}


def make_stack(block, name, num_layers, options, dtype, **more):
    """Makes the blocks of a model, and the norm that pre-norm blocks need after them.

    Args:
        block: Class of the blocks.
        name: Name of the stack, with which those of the blocks begin.
        num_layers: Number of blocks.
        options: Dict of a model's constructor arguments.
        dtype: Dtype policy of the layers.
        **more: Further arguments of a block.

    Returns:
        A `TransformerStack`.
    """
    given = {option: options[option] for option in BLOCK_OPTIONS} | more
    if embedding_positions(options["positions"]) != options["positions"]:
        inside = {"positions": options["positions"]}
        given["attention"] = inside | (given["attention"] or {})
    shared = options["share_layers"]
    blocks = [
        block(
            **given,
            stochastic_depth=options["stochastic_depth"]
            * (1.0 if shared else (i + 1) / num_layers),
            name=f"{name}_{i}",
            dtype=dtype,
        )
        for i in range(1 if shared else num_layers)
    ]
    norm = None
    if options["normalize_first"]:
        norm = make_norm(options["norm"], name=f"{name}_norm", dtype=dtype)
    blocks = blocks * num_layers if shared else blocks
    return TransformerStack(blocks, norm, name=name, dtype=dtype)


def cross_attention_options(options):
    """Computes the attention options that make sense between source and target.

    Positions of the two have no common count: what counts them is left out.

    Args:
        options: Dict of a model's constructor arguments.

    Returns:
        A dict of `MultiHeadAttention` arguments.

    Example:
        >>> cross_attention_options({"attention": {"sliding_window": 3, "scale": 1.0}})
        {'scale': 1.0}
    """
    given = options["attention"] or {}
    counting = ("sliding_window", "positions")
    return {name: given[name] for name in given if name not in counting}
