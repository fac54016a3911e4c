"""What the Transformer models are stacked from, and how they are configured.

Shapes: D model_dim, V vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import keras

from keras_seqattn import arguments
from keras_seqattn.annotations import Filters, Tensor
from keras_seqattn.layers import (
    PositionalEmbedding,
    TokenLogits,
    TransformerStack,
)
from keras_seqattn.layers.transformer.block import (
    attention_config,
    attention_from_config,
)
from keras_seqattn.layers.transformer.residual import make_norm
from keras_seqattn.layers.weights.frozen import freeze_parts, frozen_parts
from keras_seqattn.layers.weights.lora import enable_lora
from keras_seqattn.layers.weights.quantization import dtype_config, quantize_composites
from keras_seqattn.models.config import Config, TransformerConfig

_NAMES_OF_KERAS = ("name", "dtype", "trainable")


class Configured:
    """A model whose configuration is its constructor's arguments.

    A mixin of `keras.Model`; the model calls `configure` when it is made.
    """

    def configure(self, config: Config, dtype: Any) -> None:
        """Keeps what `get_config` returns, as `config`, and the dtype policy.

        Keras's functional models drop the policy: without it a mixed model is saved as
        float32, and float16 has no loss scale.
        """
        self.config = config
        if dtype is not None:
            self.dtype_policy = dtype

    @property
    def layers(self) -> list[keras.layers.Layer]:
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

    def learning_rate_factors(self) -> dict[str, float]:
        """Returns the factors that make a rate found at `base_dim` hold for this width.

        They are for `training.Adam`. With them, and the scales that a model with
        `base_dim` has inside, a step changes what each layer computes by as much at one
        width as at another, so that the best rate stays where it is. The widths of the
        feed-forwards, and the number of heads of a fixed `key_dim`, are to grow with
        `model_dim`.

        Returns:
            A dict of factors by regular expressions of the weights' paths: here the
            kernels of the blocks, whose rate falls as the width grows. Empty without
            `base_dim`.

        Example:
            >>> from keras_seqattn.models import EncoderModel
            >>> EncoderModel(50, model_dim=32, base_dim=16).learning_rate_factors()
            {'coder_[0-9]+/.*kernel$': 0.5}

        Reference:
            Yang et al. 2022, "Tensor Programs V", table 8. Differs: the kernels of the
            values and queries begin as others do, not with 0.
        """
        factor = getattr(self.config, "width_factor", 1.0)
        return {} if factor == 1.0 else {"coder_[0-9]+/.*kernel$": factor}

    def make_train_function(self, force: bool = False) -> Any:
        """Makes what `fit` runs, the optimizer's variables first.

        If they were made while TensorFlow traces a step, it would trace the step again,
        and the first step would take twice as long.
        """
        if not self.optimizer.built:
            self.optimizer.build(self.trainable_variables)
        return super().make_train_function(force)

    def quantize(
        self,
        mode: str | None = None,
        config: Any = None,
        filters: Filters | None = None,
        **kwargs: Any,
    ) -> None:
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

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        options = attention_config(self.config.options())
        config = {"name": self.name, "dtype": dtype_config(self), **options}
        if not self.trainable:
            config["trainable"] = False
        elif frozen := frozen_parts(self):
            config["frozen"] = frozen
        lora = getattr(self, "lora_options", None)
        return config if lora is None else {**config, "lora": dict(lora)}

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> Self:
        """Makes the model from its constructor's arguments."""
        # Once, so that all parts of the model share a layer that was given.
        for name in ("attention", "decoder_attention", "positions"):
            if name in config:
                config = {**config, name: attention_from_config(config[name])}
        config = dict(config)
        lora, frozen = config.pop("lora", None), config.pop("frozen", ())
        model = cls(**config)
        if lora is not None:
            enable_lora(model, **lora)
        freeze_parts(model, frozen)
        return model


def check_names(model: type, given: Mapping[str, Any]) -> None:
    """Raises an error if neither a model nor Keras knows a keyword argument.

    Args:
        model: The model's class.
        given: Keyword arguments by name.

    Raises:
        ValueError: If `given` has an unknown name.

    Example:
        >>> check_names(Configured, {"name": "small"})
    """
    names = (*arguments.names_of(model), *_NAMES_OF_KERAS)
    arguments.known(given, names, model.__name__)


def check_base_dim(base_dim: int | None, optimizer: str | Sequence[str]) -> None:
    """Refuses a `base_dim` where an optimizer is not Adam.

    Args:
        base_dim: That of the model.
        optimizer: Name of an optimizer, or several.

    Raises:
        ValueError: If there is a `base_dim` and an optimizer other than "adam".

    Example:
        >>> check_base_dim(64, "adam")
    """
    names = {optimizer} if isinstance(optimizer, str) else set(optimizer)
    if base_dim and names != {"adam"}:
        raise ValueError(
            "`base_dim` must be None with optimizers other than 'adam'. "
            f"Received: base_dim={base_dim!r}, optimizer={optimizer!r}."
        )


def make_embedding(
    config: TransformerConfig, name: str, vocabulary_size: int, dtype: Any
) -> PositionalEmbedding:
    """Returns an embedding, with the positions that attention does not apply."""
    return PositionalEmbedding(
        vocabulary_size,
        config.model_dim,
        **config.embedding_options(),
        mask_zero=config.pad_id == 0,
        name=name,
        dtype=dtype,
    )


class Logits:
    """Computes the logits `(..., V)` of vectors `(..., D)`.

    The table is the embedding's own, where embeddings are tied, with its bias, or
    another, which gets a bias by `logits_bias`. The calls of one search can share what
    `shared` returns.
    """

    def __init__(
        self, embedding: PositionalEmbedding, config: Config, dtype: Any
    ) -> None:
        self._scale = scaling(getattr(config, "width_factor", 1.0), dtype)
        self._embedding = embedding if config.tie_embeddings else None
        if self._embedding is None:
            self._output = TokenLogits(
                embedding.vocabulary_size,
                use_bias=getattr(config, "logits_bias", False),
                name="output",
                dtype=dtype,
            )

    def __call__(self, x: Tensor, shared: dict[str, Tensor] | None = None) -> Tensor:
        """Computes the logits of `x`."""
        x = self._scale(x)
        if self._embedding is None:
            return self._output(x)
        return self._embedding.logits(x, **(shared or {}))

    def shared(self) -> dict[str, Tensor]:
        """Returns what all calls of a search share, as a dict of tensors."""
        if self._embedding is None:
            return {}
        kernel = self._embedding.logits_kernel()
        return {} if kernel is None else {"kernel": kernel}


def scaling(factor: float, dtype: Any) -> Callable[[Tensor], Tensor]:
    """Returns what multiplies a float tensor by a number, and keeps its mask."""
    if factor == 1.0:
        return lambda x: x
    return keras.layers.Rescaling(factor, dtype=dtype)


def make_stack(
    block: type,
    name: str,
    num_layers: int,
    config: TransformerConfig,
    dtype: Any,
    **more: Any,
) -> TransformerStack:
    """Returns the blocks of a model, and the norm that pre-norm blocks need after them.

    The names of blocks and norm begin with `name`; `more` are arguments of the blocks,
    in place of the configuration's.
    """
    shared = config.share_layers
    blocks = [
        block(
            **{**config.block_options(), **more},
            stochastic_depth=config.stochastic_depth
            * (1.0 if shared else (i + 1) / num_layers),
            name=f"{name}_{i}",
            dtype=dtype,
        )
        for i in range(1 if shared else num_layers)
    ]
    norm = None
    if config.normalize_first:
        norm = make_norm(config.norm, config.epsilon, name=f"{name}_norm", dtype=dtype)
    blocks = blocks * num_layers if shared else blocks
    return TransformerStack(blocks, norm, name=name, dtype=dtype)
