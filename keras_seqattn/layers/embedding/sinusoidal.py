"""Sinusoidal positions: their table, and the layer that adds it to vectors.

Shapes: L length, D model_dim. Positions count from 0 and are computed in float32
whatever the compute dtype: in bfloat16 the sinusoids are off by 0.2 at position 300.
"""

import math
from typing import Any, Literal

import keras
from keras import ops

from keras_seqattn import arguments
from keras_seqattn.annotations import Shape, Tensor
from keras_seqattn.backend.ops import as_int32
from keras_seqattn.layers.embedding.positions import positions_of
from keras_seqattn.layers.shapes import check_rank

LAYOUTS = ("interleaved", "halves")


def sinusoidal_table(
    length: int | Tensor,
    dim: int,
    base: float = 10000.0,
    cosine_exponent: Literal["even", "odd"] = "even",
    start: int | Tensor = 0,
    layout: Literal["interleaved", "halves"] = "interleaved",
) -> Tensor:
    """Computes sinusoidal positions, sines and cosines interleaved or as two halves.

    table[p, 2i] = sin(p / base^(2i/dim)) and table[p, 2i+1] = cos(p / base^(c/dim)),
    where the cosine's exponent c is 2i ("even", the standard) or 2i + 1 ("odd"). As two
    halves the columns 0, 2, 4, ... come first, then 1, 3, 5, ...

    Args:
        length: Number of positions L, an integer or a scalar tensor.
        dim: Width D of the table, a positive integer; an odd one ends on a sine.
        base: The longest wavelength over 2 pi, a positive number.
        cosine_exponent: "even" or "odd".
        start: The first position, an integer or a scalar tensor.
        layout: "interleaved" (the standard) or "halves": all sines, then all cosines.

    Returns:
        Float32 tensor `(L, D)`.

    Raises:
        ValueError: If `dim` is not a positive integer, `base` is not positive, or
            `cosine_exponent` or `layout` is unknown.

    Example:
        >>> [round(float(x), 4) for x in sinusoidal_table(2, 4)[1]]
        [0.8415, 0.5403, 0.01, 0.9999]

    Reference:
        Vaswani et al. 2017, section 3.5. Differs: none. "odd" is a printed variant, and
        "halves" what Marian models compute in transformers. Tensor2Tensor, Marian
        itself and fairseq also divide by dim/2 - 1 in place of dim/2, as "halves" does
        with `base=10000 ** (h / (h - 1))`, where h is dim/2.
    """
    arguments.index("length", length, 0)
    arguments.positive_integer("dim", dim)
    arguments.number("base", base, above=0.0)
    arguments.choice("cosine_exponent", cosine_exponent, ("even", "odd"))
    arguments.index("start", start)
    arguments.choice("layout", layout, LAYOUTS)
    positions = ops.arange(length, dtype="int32") + as_int32(start)
    return _sinusoids(positions, dim, base, cosine_exponent, layout)


def _sinusoids(positions, dim, base, cosine_exponent, layout):
    """Computes the rows `(..., D)` of the table at int32 positions `(...)`."""
    index = ops.arange(dim, dtype="int32")
    if layout == "halves":  # 0, 2, 4, ..., 1, 3, 5, ...
        sines = (dim + 1) // 2
        index = 2 * index - ops.where(index < sines, 0, 2 * sines - 1)
    cosine = index % 2 == 1
    exponent = index if cosine_exponent == "odd" else index - index % 2
    rate = ops.exp(ops.cast(exponent, "float32") * (-math.log(base) / dim))
    angles = ops.cast(positions, "float32")[..., None] * rate  # (..., D)
    return ops.where(cosine, ops.cos(angles), ops.sin(angles))


@keras.saving.register_keras_serializable(package="keras_seqattn")
class SinusoidalPositions(arguments.Checked, keras.layers.Layer):
    """Adds sinusoidal positions to a sequence of vectors.

    y[b, p] = x[b, p] + sinusoidal_table[shift + start + p]. Masks pass through.
    Shapes: B batch, L length, D model_dim.

    Args:
        base: The longest wavelength over 2 pi, a positive number.
        cosine_exponent: "even" (the standard) or "odd".
        layout: "interleaved" (the standard) or "halves", as in `sinusoidal_table`.
        shift: Integer added to every position, so that the first is `shift`, not 0.
        **kwargs: `name`, `dtype`.

    Call arguments:
        x: Float tensor `(B, L, D)`.
        start: Position of the first vector; a scalar tensor in cached decoding.
        positions: Integer tensor `(B, L)`, or `(L,)` for all rows: the position of each
            vector, as in packed or shifted sequences; in place of `start`.

    Returns:
        Float tensor `(B, L, D)` in the compute dtype.

    Raises:
        ValueError: If `base` is not positive, `cosine_exponent` or `layout` is unknown,
            or shapes do not fit.

    Example:
        >>> import numpy as np
        >>> layer = SinusoidalPositions()
        >>> tuple(layer(np.zeros((2, 5, 8), "float32")).shape)
        (2, 5, 8)

    Reference:
        Vaswani et al. 2017, section 3.5. Differs: none.
    """

    def __init__(
        self,
        base: float = 10000.0,
        cosine_exponent: Literal["even", "odd"] = "even",
        layout: Literal["interleaved", "halves"] = "interleaved",
        shift: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.base = arguments.number("base", base, above=0.0)
        self.cosine_exponent = arguments.choice(
            "cosine_exponent", cosine_exponent, ("even", "odd")
        )
        self.layout = arguments.choice("layout", layout, LAYOUTS)
        self.shift = arguments.integer("shift", shift)
        self.supports_masking = True
        self.built = True

    def call(
        self, x: Tensor, start: int | Tensor = 0, positions: Tensor | None = None
    ) -> Tensor:
        """Adds the positions `start`, `start + 1`, ..., or `positions`, to `x`."""
        check_rank("x", x, "(batch, length, width)")
        positions = positions_of(x, start, positions) + self.shift
        rows = _sinusoids(
            positions, x.shape[-1], self.base, self.cosine_exponent, self.layout
        )
        return x + ops.cast(rows, x.dtype)

    def compute_output_shape(self, x_shape: Shape) -> Shape:
        """Returns the shape of `x`, unchanged."""
        check_rank("x", x_shape, "(batch, length, width)")
        return x_shape

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {
            **super().get_config(),
            "base": self.base,
            "cosine_exponent": self.cosine_exponent,
            "layout": self.layout,
            "shift": self.shift,
        }
