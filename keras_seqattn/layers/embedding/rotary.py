"""Rotary positions: queries and keys rotated by the angles of their positions.

Shapes: B batch, L length, H heads, K key_dim.
"""

import math
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_seqattn import arguments
from keras_seqattn.annotations import Shape, Tensor
from keras_seqattn.layers.distances import check_lengths
from keras_seqattn.layers.embedding.positions import positions_of
from keras_seqattn.layers.shapes import check_rank, check_tensor

# The numbers of `llama3_scaling`, as Hugging Face's configurations call them.
LLAMA3_SCALING = (
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
)


@keras.saving.register_keras_serializable(package="keras_seqattn")
class RotaryPositions(arguments.Checked, keras.layers.Layer):
    """Rotates queries and keys by position, so that their products see distances.

    The pair (x[i], x[i + K / 2]) is rotated by the angle p * base^(-2i / K) at position
    p = (start + l) / scaling. Pairs lie across the two halves, as in GPT-NeoX and the
    checkpoints of Hugging Face, not side by side (2i, 2i + 1) as in the paper. So
    published weights fit, and CTranslate2 reads ours with `rotary_interleave=False`.
    A permutation of the projections' columns converts one convention into the other.
    Computed in float32. Masks pass through.
    Shapes: B batch, L length, H heads, K key_dim.

    Args:
        base: The longest wavelength over 2 pi, a positive number.
        scaling: Positive number by which positions are divided (position
            interpolation): L tokens fill the range of L / scaling tokens in training.
        sequence_axis: Axis of L in a call of the layer, not the first. Inside
            attention, heads are always `(B, L, H, K)`.
        feature_axis: Axis of K in a call of the layer, not the first.
        llama3_scaling: The rescaling of Llama 3.1 to 3.3, None for other models: a dict
            of the positive numbers `factor`, `low_freq_factor`, `high_freq_factor` and
            `original_max_position_embeddings`, as in their `config.json`. Angles that
            turn at least `high_freq_factor` times in the original length stay; those
            that turn at most `low_freq_factor` times are divided by `factor`; between,
            both are mixed.
        **kwargs: `name`, `dtype`.

    Call arguments:
        x: Float tensor `(B, L, H, K)` of queries or keys, or of rank 3 or more with the
            two axes elsewhere; K is even.
        start: Position of the first vector; a scalar tensor in cached decoding.
        positions: Integer tensor `(B, L)`, or `(L,)` for all rows: the position of each
            vector, as in packed or shifted sequences; in place of `start`.

    Returns:
        Float tensor of the shape of `x` in the compute dtype.

    Raises:
        ValueError: If `base` or `scaling` is not positive, `llama3_scaling` is not such
            a dict or its high factor not above the low one, K is odd, or axes or shapes
            do not fit.

    Example:
        >>> import numpy as np
        >>> layer = RotaryPositions()
        >>> x = np.array([1.0, 0.0, 0.0, 0.0]).reshape(1, 1, 1, 4)
        >>> [round(float(x), 4) for x in layer(x, start=1)[0, 0, 0]]
        [0.5403, 0.0, 0.8415, 0.0]

    Reference:
        Su et al. 2021, section 3.2; scaling: Chen et al. 2023; llama3_scaling: Meta's
        code (`apply_scaling` in github.com/meta-llama/llama-models). Differs: the
        pairs.
    """

    def __init__(
        self,
        base: float = 10000.0,
        scaling: float = 1.0,
        sequence_axis: int = 1,
        feature_axis: int = -1,
        llama3_scaling: Mapping[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.base = arguments.number("base", base, above=0.0)
        self.scaling = arguments.number("scaling", scaling, above=0.0)
        self.sequence_axis = arguments.integer("sequence_axis", sequence_axis)
        self.feature_axis = arguments.integer("feature_axis", feature_axis)
        self.llama3_scaling = _checked_llama3(llama3_scaling)
        self.supports_masking = True

    def build(self, x_shape: Shape) -> None:
        """Checks that the axes exist, and that the width of a head is even."""
        check_rank("x", x_shape, "(batch, ..., length, width)")
        _, feature = self._axes(len(x_shape))
        _check_width(x_shape[feature])

    def call(
        self, x: Tensor, start: int | Tensor = 0, positions: Tensor | None = None
    ) -> Tensor:
        """Rotates `x`."""
        check_rank("x", x, "(batch, ..., length, width)")
        return self._rotate_pairs(x, start, positions, *self._axes(len(x.shape)))

    def rotate(self, x: Tensor, start: int | Tensor = 0) -> Tensor:
        """Rotates heads at positions `start`, `start + 1`, ...

        Args:
            x: Float tensor `(B, L, H, K)`.
            start: Position of the first vector, an integer or a scalar tensor.

        Returns:
            Float tensor `(B, L, H, K)` in the dtype of `x`.

        Raises:
            ValueError: If `x` does not have four axes, K is odd, or `start` is not an
                integer or a scalar tensor.
        """
        check_tensor("x", x, "(batch, length, heads, width)")
        arguments.index("start", start)
        return self._rotate_pairs(x, start, None, 1, 3)

    def bias(
        self,
        target_length: int | Tensor,
        source_length: int | Tensor,
        offset: int | Tensor = 0,
    ) -> None:
        """Returns None: scores of rotated queries and keys need no bias."""
        check_lengths(target_length, source_length, offset)
        return None

    def _axes(self, rank):
        """Returns the axes of length and width, counted from the first."""
        axes = self.sequence_axis, self.feature_axis
        found = {axis % rank for axis in axes if -rank <= axis < rank}
        if len(found) < 2 or 0 in found:
            raise ValueError(
                "`sequence_axis` and `feature_axis` must be two axes of `x`, and not "
                f"the first. Received: sequence_axis={axes[0]}, "
                f"feature_axis={axes[1]}, x of rank {rank}."
            )
        return tuple(axis % rank for axis in axes)

    def _rotate_pairs(self, x, start, positions, sequence, feature):
        """Rotates along two axes, which are not negative."""
        _check_width(x.shape[feature])
        half = int(x.shape[feature]) // 2  # a tensor where torch traces a program
        rate = self._rates(half)
        positions = positions_of(x, start, positions, axis=sequence)
        positions = ops.cast(positions, "float32") / self.scaling
        # Positions `(L,)` or `(B, L)`, and rates `(K / 2,)`, at their axes of `x`.
        along, across = [1] * len(x.shape), [1] * len(x.shape)
        *batch, along[sequence] = ops.shape(positions)
        if batch:
            along[0] = batch[0]
        across[feature] = half
        angles = ops.multiply(ops.reshape(positions, along), rate.reshape(across))
        cosine, sine = ops.cos(angles), ops.sin(angles)
        left, right = ops.split(ops.cast(x, "float32"), 2, axis=feature)
        rotated = (left * cosine - right * sine, right * cosine + left * sine)
        return ops.cast(ops.concatenate(rotated, axis=feature), x.dtype)

    def _rates(self, half):
        """Returns the angle of each pair at position 1, an array `(K / 2,)`."""
        rate = self.base ** (-np.arange(half) / half)
        if self.llama3_scaling is not None:
            factor, low, high, length = map(self.llama3_scaling.get, LLAMA3_SCALING)
            turns = length * rate / (2 * math.pi)
            kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
            rate = rate * ((1.0 - kept) / factor + kept)
        return rate.astype("float32")

    def compute_output_shape(self, x_shape: Shape) -> Shape:
        """Returns the shape of `x`, unchanged."""
        check_rank("x", x_shape, "(batch, ..., length, width)")
        return x_shape

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        scaling = self.llama3_scaling
        return {
            **super().get_config(),
            "base": self.base,
            "scaling": self.scaling,
            "sequence_axis": self.sequence_axis,
            "feature_axis": self.feature_axis,
            "llama3_scaling": None if scaling is None else dict(scaling),
        }


def _checked_llama3(given):
    """Returns the numbers of `llama3_scaling`, without what else the dict holds."""
    if given is None:
        return None
    wanted = f"a dict of the numbers {LLAMA3_SCALING}, the high above the low, or None"
    if not isinstance(given, Mapping) or not {*LLAMA3_SCALING} <= {*given}:
        arguments.refuse("llama3_scaling", given, wanted)
    found = {
        name: arguments.number(f"llama3_scaling[{name!r}]", given[name], above=0.0)
        for name in LLAMA3_SCALING
    }
    if found["high_freq_factor"] <= found["low_freq_factor"]:
        arguments.refuse("llama3_scaling", given, wanted)
    return found


def _check_width(width):
    if width is not None and width % 2:
        raise ValueError(
            "`key_dim` must be even for rotary positions, which rotate pairs. "
            f"Received: key_dim={width!r}."
        )
