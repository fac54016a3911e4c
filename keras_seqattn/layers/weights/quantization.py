"""Quantization of subclasses of Keras's layers, and of layers made of layers."""

import json
import re
import warnings
from typing import Any

import keras
import numpy as np

from keras_seqattn.annotations import Filters, Shape
from keras_seqattn.backend.parts import layers_of

# The name by which a file has the quantizer of a layer's inputs, as JSON.
INPUTS = "inputs_quantizer"


class QuantizedAsParent:
    """Makes a subclass of one of Keras's layers quantizable as that layer is.

    Keras does not quantize subclasses. A mixin: name it before the layer.
    """

    @property
    def dtype_policy(self) -> Any:
        """The layer's own policy, also where it was given the map of many layers.

        Keras's layers look here for how they are quantized when they are saved.
        """
        policy = super().dtype_policy
        is_map = isinstance(policy, keras.dtype_policies.DTypePolicyMap)
        return policy[self.path] if is_map and self.path else policy

    @dtype_policy.setter
    def dtype_policy(self, value: Any) -> None:
        keras.Layer.dtype_policy.fset(self, value)

    def quantize(
        self, mode: str | None = None, type_check: bool = True, config: Any = None
    ) -> None:
        """Quantizes the weights as the parent does."""
        super().quantize(mode, type_check=False, config=config)

    def quantized_build(self, shape: Shape, mode: str, config: Any = None) -> None:
        """Makes the quantized weights; without a `config`, as `quantize` does.

        For an embedding without one, Keras would quantize what its int4 logits are
        computed of, which `quantize` leaves as it is.
        """
        config = self._default_config(mode) if config is None else config
        super().quantized_build(shape, mode, config)

    def _default_config(self, mode):
        """Returns what `quantize` does by default, None for a mode of no such kind."""
        if mode == "int8":
            return keras.quantizers.Int8QuantizationConfig()
        if mode == "int4":
            size = getattr(self.dtype_policy, "block_size", None)
            return keras.quantizers.Int4QuantizationConfig(block_size=size)
        return None

    def save_own_variables(self, store: Any) -> None:
        """Saves the weights, and how inputs are quantized, unless by default.

        The layer that holds this one makes it again, and knows no more than its policy.
        """
        super().save_own_variables(store)
        default = self._default_config(self.quantization_mode)
        if default is None or not self.built:
            return
        try:
            own = _as_text(self.inputs_quantizer)
        except NotImplementedError:
            kind = type(self.inputs_quantizer).__name__
            warnings.warn(
                f"The file does not hold how `{self.path}` quantizes its inputs: give "
                f"{kind} a `get_config`. Received: {kind}.",
                stacklevel=2,
            )
            return
        if own != _as_text(default.activation_quantizer):
            store[INPUTS] = np.frombuffer(own.encode(), "uint8")

    def load_own_variables(self, store: Any) -> None:
        """Loads the weights, and how inputs are quantized."""
        values = {name: store[name] for name in store.keys()}
        own = values.pop(INPUTS, None)
        super().load_own_variables(values)
        if own is not None:
            config = json.loads(np.asarray(own).tobytes())
            self.inputs_quantizer = keras.saving.deserialize_keras_object(config)


def _as_text(quantizer):
    return json.dumps(keras.saving.serialize_keras_object(quantizer))


def quantize_composites(
    model: keras.Model,
    mode: str | None,
    config: Any = None,
    filters: Filters | None = None,
) -> None:
    """Quantizes the layers of a model that are weights and layers in one.

    `keras.Model.quantize`, whose arguments these are, leaves them out: it quantizes
    only layers without parts.
    """
    for layer in layers_of(model):
        is_composite = isinstance(layer, QuantizedAsParent)
        if not is_composite or layer.quantization_mode or not _passes(layer, filters):
            continue
        try:
            layer.quantize(mode or config.mode, config=config)
        except NotImplementedError as error:  # Keras also warns of such modes
            warnings.warn(str(error), stacklevel=3)


def _passes(layer, filters):
    """Returns whether Keras's `filters` choose a layer."""
    if filters is None or callable(filters):
        return filters is None or filters(layer)
    patterns = [filters] if isinstance(filters, str) else filters
    return any(re.search(pattern, layer.name) for pattern in patterns)


def dtype_config(layer: keras.layers.Layer) -> Any:
    """Returns the `dtype` of a composite layer's config.

    `quantize` gives each part its own policy. When the layer's `build` makes the parts
    again, each must find its policy: by the end of its path, since a layer that was
    given to another is loaded outside of it. Parts of a model are found by their whole
    paths, since two of these may end alike.
    """
    policy = keras.Layer.dtype_policy.fget(layer)  # the map, where a model has one
    if layer.path is None:  # Not built, so nothing in it is quantized.
        return keras.dtype_policies.serialize(policy)
    outside = layer.path.rpartition("/")[0] + "/"
    is_model = isinstance(layer, keras.Model)

    def place(part):
        if is_model:
            return part.path
        return f"(.*/)?{re.escape(part.path.removeprefix(outside))}"

    maps, parts = keras.dtype_policies.DTypePolicyMap, layers_of(layer)[1:]
    quantized = {
        place(part): part.dtype_policy
        for part in parts
        if part.quantization_mode is not None
        and not isinstance(part.dtype_policy, maps)
    }
    others = {}
    if quantized and isinstance(policy, maps):
        # A layer of a model that was loaded has that model's map, of its whole paths.
        paths = [part.path for part in parts]
        others = {
            name: own
            for name, own in policy.items()
            if own.quantization_mode is None or name in paths
        }
        policy = policy.default_policy
    if quantized:
        policy = maps(policy, {**others, **quantized})
    return keras.dtype_policies.serialize(policy)


def unquantized(policy: Any) -> Any:
    """Returns the name of a policy's float policy, for parts that stay floats.

    A map of policies is returned as it is: it holds its own for each part.

    Example:
        >>> unquantized(keras.dtype_policies.get("int8_from_mixed_bfloat16"))
        'mixed_bfloat16'
    """
    if isinstance(policy, keras.dtype_policies.DTypePolicyMap):
        return policy
    return policy.name.rpartition("_from_")[2]
