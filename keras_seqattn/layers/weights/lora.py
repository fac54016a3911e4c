"""LoRA: trains a model by few weights, the factors beside its kernels.

Shapes: N width of a kernel's last axis, R rank.
"""

import math
import re
from typing import Any

import keras
from keras import ops

from keras_seqattn import arguments
from keras_seqattn.annotations import Lines
from keras_seqattn.backend.parts import layers_of
from keras_seqattn.layers.weights.quantization import QuantizedAsParent


class KeepsLora:
    """Makes a subclass of one of Keras's layers save its LoRA factors.

    Keras adds the product of both factors to the kernel that it saves, and sets both to
    zero when it loads; no gradient reaches them after that. A mixin: name it before the
    layer.
    """

    adapted_weight = "kernel"

    def _factors(self):
        name = self.adapted_weight
        return [getattr(self, f"lora_{name}_{which}") for which in "ab"]

    def _twin(self, **changed):
        """Returns a layer of the same weights that differs in some attributes.

        This one keeps its own, since other threads may be computing with it.
        """
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__, **changed)
        return twin

    def _merged_weight(self):
        """Returns the adapted weight with the product of the factors, in float32.

        Keras's own property has it in the dtype that the layer computes in.
        """
        plain = getattr(self._twin(lora_enabled=False), self.adapted_weight)
        weight = ops.cast(plain, "float32")
        if not self.lora_enabled:
            return weight
        scale = self.lora_alpha / self.lora_rank
        return weight + scale * ops.matmul(*self._factors())

    def save_own_variables(self, store: Any) -> None:
        """Saves the weights, and both factors beside them."""
        if not self.lora_enabled:
            super().save_own_variables(store)
            return
        # Keras would merge the factors.
        twin = self._twin(lora_enabled=False)
        super(KeepsLora, twin).save_own_variables(store)
        store["lora_a"], store["lora_b"] = (x.value for x in self._factors())
        store["lora_scale"] = ops.convert_to_tensor(
            self.lora_alpha / self.lora_rank, "float32"
        )

    def load_own_variables(self, store: Any) -> None:
        """Loads weights and factors; merges the factors if LoRA is not enabled."""
        values = {name: store[name] for name in store.keys()}
        saved = [values.pop(f"lora_{part}", None) for part in ("a", "b", "scale")]
        # Loading sets both factors to zero. If the file has none, A must be what it
        # was, random: a gradient reaches B only through A.
        before = self._factors()[0].numpy() if self.lora_enabled else None
        super().load_own_variables(values)
        a, b, scale = saved
        if self.lora_enabled:
            factors = self._factors()
            factors[0].assign(before if a is None else a)
            if b is not None:
                # The layer's own scale stays, since compiled programs have it.
                own = self.lora_alpha / self.lora_rank
                ratio = 1.0 if scale is None else ops.convert_to_numpy(scale) / own
                factors[1].assign(ops.array(b) * ratio)
        elif a is not None and self.quantization_mode:
            raise ValueError(
                "`model` must have LoRA enabled to load factors beside quantized "
                f"kernels. Received: the layer {self.path!r} without."
            )
        elif a is not None:
            weight = getattr(self, self.adapted_weight)
            product = ops.matmul(ops.array(a), ops.array(b)) * ops.array(scale)
            weight.assign(ops.add(weight.value, ops.cast(product, weight.dtype)))


@keras.saving.register_keras_serializable(package="keras_seqattn")
class Dense(KeepsLora, QuantizedAsParent, keras.layers.Dense):
    """Keras's `Dense`, as a part of our layers and models."""


def enable_lora(
    model: keras.Model,
    rank: int,
    alpha: float | None = None,
    targets: Lines | None = None,
    train_norms: bool = False,
) -> int:
    r"""Freezes a model, and trains LoRA factors beside its kernels instead.

    A kernel W `(..., N)` becomes W + alpha / rank * A B with A `(..., R)` random and B
    `(R, N)` zero; in the projections of queries, keys and values N is the width of a
    head. At first the model computes what it did. The layers of this library that hold
    a kernel are adapted: the projections of attention, the feed-forwards, embeddings
    and logits, of classes too. All other weights are frozen, and so are the moving
    statistics of a `BatchNormalization`; what was frozen before is adapted like the
    rest. Compile the model after the call, even if it was compiled before.

    For the models of `keras_seqattn.models`, `model.save` keeps the factors and the
    optimizer's state; for any model, the weights files and `Resume` do. When a file is
    loaded into a model without LoRA, the factors are merged into its kernels.
    Shapes: N width of a kernel's last axis, R rank.

    Args:
        model: A built Keras model.
        rank: Rank R of the factors, a positive integer.
        alpha: Positive number: the factors are scaled by alpha / rank; None: `rank`.
        targets: Regular expressions, a list or a tuple of strings. Layers are adapted
            if one of them, such as r"attention(_\d+)?/(query|value)", is found in their
            `path`. None: all.
        train_norms: Whether norms are trained too.

    Returns:
        The number of trainable weights, an integer.

    Raises:
        ValueError: If an argument is out of range, LoRA is enabled already, no layer is
            adapted, or one would be whose kernel has a constraint.

    Example:
        >>> from keras_seqattn.models import LanguageModel
        >>> model = LanguageModel(50, model_dim=16, num_layers=1, intermediate_dim=32)
        >>> enable_lora(model, rank=2, targets=[r"attention(_\d+)?/(query|value)"])
        272

    Reference:
        Hu et al. 2022, section 4.1. Differs: kernels of several axes are factored
        before the last one, and A is He uniform (He et al. 2015), not Gaussian.
    """
    arguments.instance("model", model, keras.Model, "a built Keras model")
    rank = arguments.positive_integer("rank", rank)
    alpha = arguments.number("alpha", alpha, above=0.0, optional=True)
    train_norms = arguments.boolean("train_norms", train_norms)
    patterns = _patterns(targets)
    layers = layers_of(model)
    adapted = [
        layer
        for layer in layers
        if isinstance(layer, KeepsLora)
        and layer.built
        and any(re.search(pattern, layer.path) for pattern in patterns)
    ]
    if not adapted:
        raise ValueError(
            "`targets` must match the path of a layer of this library that holds a "
            f"kernel, in a built model. Received: targets={targets!r}."
        )
    if any(isinstance(layer, KeepsLora) and layer.lora_enabled for layer in layers):
        raise ValueError(
            "`model` must be without LoRA, which can be enabled once. "
            f"Received: model={model.name!r}, where it is."
        )
    _refuse_constraints(adapted, targets)
    norms = (keras.layers.LayerNormalization, keras.layers.RMSNormalization)
    kept = {
        id(variable)
        for layer in layers
        if train_norms and isinstance(layer, norms)
        for variable in layer.weights
    }
    model.trainable = True  # else a part that was frozen would freeze its factors
    for variable in model.trainable_variables:
        variable.trainable = id(variable) in kept
    for layer in layers:
        # It moves its statistics while it is trainable, whatever its weights are.
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.trainable = False
    for layer in adapted:
        layer.enable_lora(rank, lora_alpha=alpha)
    # On TensorFlow, programs made before know nothing of the factors.
    model.train_function = model.test_function = model.predict_function = None
    model.lora_options = {
        "rank": rank,
        "alpha": alpha,
        "targets": None if targets is None else patterns,
        "train_norms": train_norms,
    }
    return sum(math.prod(variable.shape) for variable in model.trainable_variables)


def _refuse_constraints(layers, targets):
    """Refuses constraints, which Keras would when some layers are adapted already."""
    for layer in layers:
        if getattr(layer, f"{layer.adapted_weight}_constraint") is not None:
            raise ValueError(
                "`targets` must match no layer whose kernel has a constraint, which "
                f"LoRA does not keep. Received: targets={targets!r}, which match "
                f"{layer.path!r}."
            )


def _patterns(targets):
    arguments.instance("targets", targets, list | tuple, "a list of strings", True)
    if targets is None:
        return [""]  # which is found in every path
    patterns = list(arguments.strings("targets", targets))
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(
                "`targets` must be regular expressions. "
                f"Received: {pattern!r}, {error}."
            ) from error
    return patterns
