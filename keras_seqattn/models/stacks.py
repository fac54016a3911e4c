"""What models are built from, and `Configured`, which saves, loads and quantizes them.

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
from keras_seqattn.layers.norms import make_norm
from keras_seqattn.layers.transformer.block import (
    attention_config,
    attention_from_config,
)
from keras_seqattn.layers.weights.frozen import freeze_parts, frozen_parts, keep_frozen
from keras_seqattn.layers.weights.lora import enable_lora
from keras_seqattn.layers.weights.quantization import dtype_config, quantize_composites
from keras_seqattn.models.config import Config, TransformerConfig

_NAMES_OF_KERAS = ("name", "dtype", "trainable")


class Configured:
    """A mixin of our models: their configuration, saving, quantization, muP factors.

    The configuration consists of the constructor's arguments; the constructor calls
    `configure`.
    """

    def configure(self, config: Config, dtype: Any) -> None:
        """Stores the configuration, which `get_config` returns, and the dtype policy.

        Keras's functional models drop the policy. Without it a model of mixed precision
        would be saved as float32, and float16 would have no loss scaling.
        """
        self.config = config
        if dtype is not None:
            self.dtype_policy = dtype
        keep_frozen(self)  # Keras freezes before the model has its layers

    @property
    def dtype_policy(self) -> Any:
        """The model's own policy, also where it was given the map of many layers.

        Keras's `compile` looks here for whether to scale the loss.
        """
        policy = super().dtype_policy
        is_map = isinstance(policy, keras.dtype_policies.DTypePolicyMap)
        return policy.default_policy if is_map else policy

    @dtype_policy.setter
    def dtype_policy(self, value: Any) -> None:
        keras.Layer.dtype_policy.fset(self, value)

    @property
    def layers(self) -> list[keras.layers.Layer]:
        """The layers of the graph, with the blocks and the norm in place of a stack.

        So saved files keep the blocks' weights where they were before stacks existed,
        and `get_layer` finds a block by its name, beside the stack.
        """
        return [
            part
            for layer in super().layers
            for part in (
                layer.parts if isinstance(layer, TransformerStack) else [layer]
            )
        ]

    def get_layer(
        self, name: str | None = None, index: int | None = None
    ) -> keras.layers.Layer:
        """Returns a layer by its name, also a stack, or by its place in `layers`."""
        for layer in super().layers if index is None else ():
            if isinstance(layer, TransformerStack) and layer.name == name:
                return layer
        return super().get_layer(name, index)

    def learning_rate_factors(self) -> dict[str, float]:
        """Returns the factors that adapt a learning rate tuned at `base_dim`.

        They are for `training.Adam`. With them, and with the scales inside a model that
        has a `base_dim`, a step changes each layer's output by the same amount at every
        width, so the best learning rate stays the same. As `model_dim` grows, so should
        the width of the feed-forwards and the number of heads, but not the width of a
        head, `key_dim`.

        Returns:
            A dict from regular expressions of weights' paths to factors. It covers the
            kernels of the blocks, whose learning rate falls as the width grows. Empty
            without `base_dim`.

        Example:
            >>> from keras_seqattn.models import EncoderModel
            >>> EncoderModel(50, model_dim=32, base_dim=16).learning_rate_factors()
            {'coder_[0-9]+/.*kernel$': 0.5}

        Reference:
            Yang et al. 2022, "Tensor Programs V", table 8. Differs: the kernels of the
            values and queries are initialized as others are, not with 0; those of
            classes and of logits that are not tied, for their own width; the scale of
            attention's scores is left at 1 / sqrt(`key_dim`). It is right where
            `key_dim` is the one at `base_dim`, b. Where heads grow wider instead, give
            the scale of the paper: `attention={"scale": b**0.5 / key_dim}`.
        """
        # Blocks are `encoder_<i>` and `decoder_<i>`. Only Transformers have a factor.
        factor = getattr(self.config, "width_factor", 1.0)
        return {} if factor == 1.0 else {"coder_[0-9]+/.*kernel$": factor}

    def make_train_function(self, force: bool = False) -> Any:
        """Builds the optimizer's variables, then makes the function that `fit` runs.

        If they were made while TensorFlow traces a step, it would trace the step again,
        and the first step would take twice as long.
        """
        if self.optimizer is not None and not self.optimizer.built:
            self.optimizer.build(self.trainable_variables)
        return super().make_train_function(force)

    def quantize(
        self,
        mode: str | None = None,
        config: Any = None,
        filters: Filters | None = None,
        **kwargs: Any,
    ) -> None:
        """Quantizes the weights as Keras does, and the embedding tables too.

        Args:
            mode: As in `keras.Model.quantize`; so are the other arguments.
            config: A `keras.quantizers.QuantizationConfig`, or None.
            filters: Which layers to quantize, by their names or a function; None for
                all.
            **kwargs: `type_check`.
        """
        super().quantize(mode, config=config, filters=filters, **kwargs)
        quantize_composites(self, mode, config, filters)
        # They were compiled before the tables were quantized.
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
        # Deserialized once, so that all parts of the model share a layer given here.
        for name in ("attention", "decoder_attention", "positions"):
            if name in config:
                config = {**config, name: attention_from_config(config[name])}
        config = dict(config)
        lora, frozen = config.pop("lora", None), config.pop("frozen", ())
        model = cls(**config)
        is_trainable = model.trainable
        if lora is not None:
            enable_lora(model, **lora)  # which makes the model trainable
        if is_trainable:
            freeze_parts(model, frozen)
        else:
            model.trainable = False
        return model


def check_names(model: type, given: Mapping[str, Any]) -> None:
    """Raises an error if a keyword argument is unknown to both a model and Keras.

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
    """Raises an error if there is a `base_dim` and an optimizer other than Adam.

    Args:
        base_dim: The model's `base_dim`.
        optimizer: Name of an optimizer, or several names.

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


def make_embedding(config: TransformerConfig, dtype: Any) -> PositionalEmbedding:
    """Returns the embedding of a model that has only one.

    It adds positions unless attention applies them.
    """
    return PositionalEmbedding(
        config.vocabulary_size,
        config.model_dim,
        **config.embedding_options(),
        mask_zero=config.pad_id == 0,
        name="embedding",
        dtype=dtype,
    )


class Logits:
    """Computes the logits `(..., V)` of vectors `(..., D)`.

    If embeddings are tied, the table and the bias are the embedding's; otherwise the
    logits have their own table, and a bias with `logits_bias`. All calls of one search
    can share what `shared` returns.
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
        """Returns a dict of the tensors that all calls of a search can share."""
        if self._embedding is None:
            return {}
        kernel = self._embedding.logits_kernel()
        return {} if kernel is None else {"kernel": kernel}


def scaling(factor: float, dtype: Any) -> Callable[[Tensor], Tensor]:
    """Returns a function that multiplies a float tensor by a number, keeping masks."""
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
    """Returns a stack of a model's blocks, with a final norm if they are pre-norm.

    The names of blocks and norm begin with `name`; the arguments `more` override the
    configuration's for the blocks.
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
