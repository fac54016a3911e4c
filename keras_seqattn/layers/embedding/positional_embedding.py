"""The embedding of token ids with their positions, and the logits tied to it.

Shapes: B batch, L length, D model_dim, V vocabulary.
"""

import math
import threading
from typing import Any, Literal

import keras
import numpy as np
from keras import ops

from keras_seqattn import arguments
from keras_seqattn.annotations import Norm, Shape, Tensor
from keras_seqattn.backend import tracing
from keras_seqattn.layers.dropout import Dropout, if_known
from keras_seqattn.layers.embedding.learned import LearnedPositions
from keras_seqattn.layers.embedding.logits import LogitsBias, keep_factors
from keras_seqattn.layers.embedding.positions import takes_positions
from keras_seqattn.layers.embedding.sinusoidal import SinusoidalPositions
from keras_seqattn.layers.norms import EPSILON, NORMS, make_norm
from keras_seqattn.layers.shapes import check_rank, check_tensor, check_width
from keras_seqattn.layers.weights.frozen import keep_frozen
from keras_seqattn.layers.weights.lora import KeepsLora
from keras_seqattn.layers.weights.quantization import QuantizedAsParent, unquantized

# The number up to which a dtype holds all integers exactly.
EXACT_IDS = {"bfloat16": 2**8, "float16": 2**11}
# Whether the call that a thread makes is in reverse, for `compute_mask`, which Keras
# tells of the inputs alone. Searches call a model in several threads.
_CALL = threading.local()


@keras.saving.register_keras_serializable(package="keras_seqattn")
class PositionalEmbedding(
    arguments.Checked, KeepsLora, QuantizedAsParent, keras.layers.ReversibleEmbedding
):
    """Embeds token ids with their positions; in reverse, computes tied logits.

    Forward: dropout(norm(table[token] * sqrt(model_dim) + position)), with the norm if
    asked for. In reverse: logits = x . table^T, plus a bias if asked for. With
    `mask_zero` the token 0 is padding: the output carries the mask of real tokens, and
    the logits carry the mask on `x`. With `zero_id` one token has the vector 0 instead
    of the table's. It then carries only its position, but is a real token and is
    attended to, as token cutoff needs it.
    Shapes: B batch, L length, D model_dim, V vocabulary_size, W beams.

    As a subclass of Keras's `ReversibleEmbedding`, it takes LoRA and `quantize` as that
    layer does. A model of `keras_seqattn.models` quantizes it with the rest. Your own
    model leaves it out, since Keras quantizes only layers without sublayers: call the
    layer's `quantize` too.

    Args:
        vocabulary_size: Number of token ids V, a positive integer.
        model_dim: Width D of a vector, a positive integer.
        positions: "sinusoidal", "learned" (takes `max_length`), None, or a layer that
            is called as `positions(x, start=start)`, also with `positions=` if the
            embedding is called with it.
        max_length: Number of learned positions, or None.
        dropout: Fraction of the sum dropped while training, in [0, 1).
        mask_zero: Whether token 0 is padding.
        zero_id: Id in [0, V) of the token whose vector is 0, or None. Its logit is
            computed like any other.
        embedding_scale: Factor of the table's vectors, a positive number;
            sqrt(model_dim) when None.
        norm: "layer" or "rms": a norm of the sum of vector and position; None: no norm.
        epsilon: Number added to the variance of the norm, positive; 1e-5 by default.
        logits_bias: Whether logits have a bias `(V,)`.
        **kwargs: Arguments of `keras.layers.ReversibleEmbedding`.

    Call arguments:
        inputs: Integer tensor `(B, L)` of ids in [0, V); in reverse a float
            tensor `(..., D)`. An id outside is an error if its value can be seen. In a
            compiled program or on an accelerator it cannot: its vector is undefined.
        start: Position of the first token, an integer or a scalar tensor. The others
            follow it, so use `step` for beams, which are all at one position.
        reverse: Whether to compute logits.
        training: Whether to apply dropout; on TensorFlow and JAX, logits then carry
            their factors, as those of `TokenLogits` do.
        positions: Integer tensor `(B, L)`, or `(L,)` for all rows: the position of each
            token, as in packed or shifted sequences; in place of `start`.

    Returns:
        Float tensor `(B, L, D)` in the compute dtype; in reverse `(..., V)`, in
        `reverse_dtype` if that is given, else in the compute dtype.

    Raises:
        ValueError: If a size is not positive, `positions` is unknown, learned
            positions have no `max_length`, shapes do not fit, `zero_id` is outside the
            vocabulary, or an id is seen to be outside it or not an integer.

    Example:
        >>> import numpy as np
        >>> layer = PositionalEmbedding(vocabulary_size=100, model_dim=16)
        >>> x = layer(np.array([[5, 7, 0]]))
        >>> tuple(x.shape), tuple(layer(x, reverse=True).shape)
        ((1, 3, 16), (1, 3, 100))

    Reference:
        Vaswani et al. 2017, sections 3.4 and 3.5; Press and Wolf 2017; `zero_id`: Shen
        et al. 2020, "A Simple but Tough-to-Beat Data Augmentation Approach", token
        cutoff. Differs: a token that is cut off keeps its position.
    """

    adapted_weight = "embeddings"

    def __init__(
        self,
        vocabulary_size: int,
        model_dim: int,
        positions: Literal["sinusoidal", "learned"]
        | dict[str, Any]
        | keras.layers.Layer
        | None = "sinusoidal",
        max_length: int | None = None,
        dropout: float = 0.0,
        mask_zero: bool = True,
        zero_id: int | None = None,
        embedding_scale: float | None = None,
        norm: Norm | None = None,
        epsilon: float = EPSILON,
        logits_bias: bool = False,
        **kwargs: Any,
    ) -> None:
        size = arguments.positive_integer("vocabulary_size", vocabulary_size)
        width = arguments.positive_integer("model_dim", model_dim)
        mask_zero = arguments.boolean("mask_zero", mask_zero)
        # Gives unit variance after the scaling by sqrt(model_dim) on the way in, and
        # logits of order one on the way out (Vaswani et al. 2017, section 3.4).
        if "embeddings_initializer" not in kwargs:
            normal = keras.initializers.RandomNormal(stddev=width**-0.5)
            kwargs["embeddings_initializer"] = normal
        super().__init__(size, width, mask_zero=mask_zero, **kwargs)
        self.vocabulary_size = size
        self.model_dim = width
        self.max_length = arguments.positive_integer(
            "max_length", max_length, optional=True
        )
        self.dropout = arguments.fraction("dropout", dropout)
        self.zero_id = arguments.integer("zero_id", zero_id, 0, size - 1, optional=True)
        float_policy = unquantized(self.dtype_policy)
        self.positions = _positions_layer(positions, max_length, float_policy)
        self.dropout_layer = Dropout(dropout, dtype=float_policy)
        self.embedding_scale = arguments.number(
            "embedding_scale", embedding_scale, above=0.0, optional=True
        )
        self.norm = arguments.choice("norm", norm, NORMS, optional=True)
        self.epsilon = arguments.number("epsilon", epsilon, above=0.0)
        self.logits_bias = arguments.boolean("logits_bias", logits_bias)
        self.norm_layer = None
        if norm is not None:
            self.norm_layer = make_norm(norm, epsilon, name="norm", dtype=float_policy)
        self.bias_layer = None
        if logits_bias:
            self.bias_layer = LogitsBias(name="logits_bias", dtype=float_policy)
        self.supports_masking = True

    def build(self, inputs_shape: Shape | None = None) -> None:
        """Makes the table `(V, D)` and the positions."""
        # Keras would enable LoRA before it makes an untied table, which then fails.
        rank, self.lora_rank = self.lora_rank, None
        super().build(inputs_shape)
        if rank:
            self.enable_lora(rank, lora_alpha=self.lora_alpha)
        if self.positions is not None and not self.positions.built:
            self.positions.build((None, None, self.model_dim))
        if self.norm_layer is not None:
            self.norm_layer.build((None, None, self.model_dim))
        if self.bias_layer is not None:
            self.bias_layer.build((None, self.vocabulary_size))
        keep_frozen(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the layer; `compute_mask` can tell if the call is in reverse."""
        before = getattr(_CALL, "reverse", False)
        _CALL.reverse = kwargs.get("reverse", False)
        try:
            return super().__call__(*args, **kwargs)
        finally:
            _CALL.reverse = before

    def call(
        self,
        inputs: Tensor,
        start: int | Tensor = 0,
        reverse: bool = False,
        training: bool | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Embeds `inputs`, or computes their logits."""
        self._check_inputs(inputs, reverse)
        kernel = self.logits_kernel() if reverse else None
        if kernel is None:
            output = super().call(inputs, reverse=reverse)
        else:
            # Keras's layer casts no inputs, since token ids must not be cast.
            inputs = ops.cast(inputs, self.compute_dtype)
            output = ops.matmul(inputs, kernel)
        output = self._finish(output, inputs, start, reverse, training, positions)
        if kernel is not None and training:
            bias = None if self.bias_layer is None else self.bias_layer.bias
            keep_factors(output, inputs, kernel, bias)
        return output

    def _biased(self, logits):
        return logits if self.bias_layer is None else self.bias_layer(logits)

    def quantized_call(
        self,
        inputs: Tensor,
        start: int | Tensor = 0,
        reverse: bool = False,
        training: bool | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Does what `call` does, on the quantized table."""
        self._check_inputs(inputs, reverse)
        output = super().quantized_call(inputs, reverse=reverse)
        if reverse and training and self.inputs_quantizer is not None:
            output = self._with_gradient(output, inputs)
        if reverse and self.tie_weights and self.lora_enabled:
            output = output + self._logits_of_factors(inputs)
        return self._finish(output, inputs, start, reverse, training, positions)

    def _with_gradient(self, logits, inputs):
        """Returns logits of rounded inputs, with the gradient of those of the inputs.

        Rounding has none. Keras's quantized `Dense` does the same, but not the layer
        that this one derives from: nothing below the logits was trained.
        """
        twin = self._twin(inputs_quantizer=None)
        exact = super(PositionalEmbedding, twin).quantized_call(inputs, reverse=True)
        return exact + ops.stop_gradient(logits - exact)

    def _logits_of_factors(self, inputs):
        """Computes what LoRA adds to tied logits, which Keras's quantized layer lacks.

        Refuses a cap of the logits, before which this would have to be added.
        """
        if self.logit_soft_cap is not None:
            raise ValueError(
                "`logit_soft_cap` must be None with LoRA beside a quantized table. "
                f"Received: logit_soft_cap={self.logit_soft_cap!r}."
            )
        rows, columns = (ops.cast(x, self.compute_dtype) for x in self._factors())
        inner = ops.matmul(ops.cast(inputs, self.compute_dtype), ops.transpose(columns))
        scale = ops.cast(self.lora_alpha / self.lora_rank, self.compute_dtype)
        return scale * ops.matmul(inner, ops.transpose(rows))

    def _check_inputs(self, inputs, reverse):
        if reverse:
            check_width("inputs", inputs, self.model_dim, " with `reverse`")
            return
        if self.positions is not None:
            check_rank("inputs", inputs, "(batch, length)")
        dtype = keras.backend.standardize_dtype(getattr(inputs, "dtype", "int32"))
        if dtype == "string" or hasattr(inputs, "row_lengths"):  # a `tf.RaggedTensor`
            raise ValueError(
                "`inputs` must be a dense tensor of token ids: tokenize strings, and "
                "pad ragged ids with `.to_tensor()`. "
                f"Received: inputs={type(inputs).__name__} of dtype {dtype!r}."
            )
        most = EXACT_IDS.get(dtype, math.inf)
        if self.vocabulary_size - 1 > most:
            raise ValueError(
                f"`inputs` must be integers: {dtype} holds them exactly up to {most}. "
                'In a `keras.Sequential` put `keras.Input((None,), dtype="int32")` '
                f"first. Received: inputs of dtype {dtype!r}, with a vocabulary of "
                f"{self.vocabulary_size}."
            )
        values = tracing.known_values(inputs, wait=False)
        if values is None or not values.size:
            return
        low, high = values.min().item(), values.max().item()
        # `keras.Sequential` casts ids to floats.
        whole = values.dtype.kind in "iu" or (values == np.floor(values)).all()
        if not whole or low < 0 or high >= self.vocabulary_size:
            raise ValueError(
                f"`inputs` must be integers in [0, {self.vocabulary_size}), the "
                f"vocabulary. Received: inputs from {low} to {high} of dtype "
                f"{values.dtype.name!r}."
            )

    def step(self, token_ids: Tensor, index: int | Tensor) -> Tensor:
        """Embeds one token of each beam, all beams of a sentence at one position.

        Equals column `index` of a call on each beam's whole sequence.

        Args:
            token_ids: Integer tensor `(B, W)`, the token at `index` of each beam.
            index: The position, an integer or a scalar int tensor; or an int tensor
                `(B,)`, each sentence's own.

        Returns:
            Float tensor `(B, W, D)` in the compute dtype.

        Raises:
            ValueError: If `token_ids` does not have two axes of integers, or `index` is
                not an integer or an int tensor.
        """
        check_tensor("token_ids", token_ids, "(batch, beams)", integers=True)
        arguments.index("index", index, 0)
        width, place = token_ids.shape[1], {"start": index}
        if len(getattr(index, "shape", ())) == 1:
            place = {"positions": ops.repeat(index, width)[:, None]}  # (B W, 1)
        x = self(ops.reshape(token_ids, (-1, 1)), **place)
        return ops.reshape(x, (-1, width, self.model_dim))

    def _finish(self, x, inputs, start, reverse, training, positions):
        """Completes `x`, the output of Keras's layer, to the output of a call."""
        if reverse:
            # Keras's layer casts no inputs, and a quantized one leaves `reverse_dtype`.
            x = ops.cast(x, self.reverse_dtype or self.compute_dtype)
            return self._biased(x)
        scale = self.embedding_scale or self.model_dim**0.5
        x = x * ops.cast(scale, x.dtype)
        if self.zero_id is not None:
            is_zero = ops.equal(inputs, self.zero_id)
            x = ops.where(is_zero[..., None], ops.zeros_like(x), x)
        if self.positions is not None:
            given = {} if positions is None else {"positions": positions}
            if given and not takes_positions(self.positions):
                wanted = (
                    "a layer that takes `positions` in a call, where each sequence has "
                    "its own, as in the steps of a language model"
                )
                arguments.refuse("positions", self.positions, wanted)
            x = self.positions(x, start=start, **given)
        x = x if self.norm_layer is None else self.norm_layer(x)
        return self.dropout_layer(x, **if_known(training))

    def logits(self, x: Tensor, kernel: Tensor | None = None) -> Tensor:
        """Computes the tied logits `(..., V)` of vectors.

        Args:
            x: Float tensor `(..., D)`.
            kernel: What `logits_kernel` returned, for many calls; None: the table.

        Returns:
            Float tensor `(..., V)`.

        Raises:
            ValueError: If `x` is not of width D, or `kernel` not of `logits_kernel`.
        """
        check_tensor("x", x, width=self.model_dim)
        if kernel is None:
            return self(x, reverse=True)
        check_tensor("kernel", kernel, "(width, vocabulary)", self.vocabulary_size)
        rows = self._biased(ops.matmul(ops.reshape(x, (-1, x.shape[-1])), kernel))
        return ops.reshape(rows, (*ops.shape(x)[:-1], self.vocabulary_size))

    def logits_kernel(self) -> Tensor | None:
        """Transposes the table once for many calls of `logits`, each of few vectors.

        On a CPU, XLA's product would transpose it in each call, which takes as long
        again.

        Returns:
            Float tensor `(D, V)`; None if logits, without their bias, are not simply
            the product with the table.
        """
        plain = self.tie_weights and self.logit_soft_cap is None
        if not plain or self.reverse_dtype or self.quantization_mode:
            return None
        table = ops.convert_to_tensor(self.embeddings)
        return ops.cast(ops.transpose(table), self.compute_dtype)

    def compute_mask(self, inputs: Tensor, mask: Tensor | None = None) -> Tensor | None:
        """Marks real tokens; in a call in reverse, passes the vectors' mask on."""
        if getattr(_CALL, "reverse", False):
            return mask
        return ops.not_equal(inputs, 0) if self.mask_zero else None

    def compute_output_shape(self, inputs_shape: Shape, reverse: bool = False) -> Shape:
        """Returns the shape of the vectors, or of the logits with `reverse`."""
        return tuple(super().compute_output_shape(inputs_shape, reverse))

    def compute_output_spec(
        self,
        inputs: Tensor,
        start: int | Tensor = 0,
        reverse: bool = False,
        training: bool | None = None,
        positions: Tensor | None = None,
    ) -> Any:
        """Returns the symbolic output."""
        self._check_inputs(inputs, reverse)
        spec = super().compute_output_spec(inputs, reverse=reverse)
        if reverse and self.reverse_dtype is not None:
            return keras.KerasTensor(spec.shape, self.reverse_dtype)
        return spec

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        config = super().get_config()
        for owned_by_keras in ("input_dim", "output_dim"):
            config.pop(owned_by_keras)
        return {
            **config,
            "vocabulary_size": self.vocabulary_size,
            "model_dim": self.model_dim,
            "positions": arguments.configuration(self.positions),
            "max_length": self.max_length,
            "dropout": self.dropout,
            "zero_id": self.zero_id,
            "embedding_scale": self.embedding_scale,
            "norm": self.norm,
            "epsilon": self.epsilon,
            "logits_bias": self.logits_bias,
        }


def _positions_layer(positions, max_length, dtype):
    """Makes the layer that a name stands for; a layer stands for itself."""
    if isinstance(positions, dict):
        deserialize = keras.saving.deserialize_keras_object
        positions = arguments.interpreted(
            "positions", positions, deserialize, "a layer"
        )
    if positions is None or isinstance(positions, keras.layers.Layer):
        return positions
    name = positions if isinstance(positions, str) else None
    if name == "sinusoidal":
        return SinusoidalPositions(name="positions", dtype=dtype)
    if name == "learned" and max_length is not None:
        return LearnedPositions(max_length, name="positions", dtype=dtype)
    if name == "learned":
        raise ValueError(
            "`max_length` must be given for learned positions. "
            f"Received: max_length={max_length!r}."
        )
    raise ValueError(
        "`positions` must be 'sinusoidal', 'learned', None or a layer. "
        f"Received: positions={positions!r}."
    )
