"""Positions inside attention: rotated queries and keys, and biases of the scores.

A layer of this kind has three methods, which `MultiHeadAttention` calls:
`build(query_shape)` for heads `(B, T, H, K)`; `rotate(x, start)`, which rotates queries
or keys at positions `start`, `start + 1`, ...; and `bias(target_length, source_length,
offset)`, which returns what is added to the scores. That is a tensor `(1, H, T, S)`, a
`DistanceBias`, which long sequences never expand to all pairs, or None. Query i is at
i + offset, key j at j. Only their distance may count, as in the layers here, since
attention one position at a time does not know where a sequence began.
Shapes: B batch, L length, T target length, S source length, H heads, G key and value
heads, K key_dim.
"""

import functools
import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_seqattn import arguments
from keras_seqattn.annotations import (
    Initializer,
    PositionsInAttention,
    Shape,
    Tensor,
)
from keras_seqattn.backend.ops import as_int32
from keras_seqattn.layers.distances import DistanceBias, check_lengths
from keras_seqattn.layers.embedding.rotary import RotaryPositions
from keras_seqattn.layers.shapes import check_built, check_rank, check_tensor
from keras_seqattn.layers.weights.quantization import unquantized


class _Bias(arguments.Checked, keras.layers.Layer):
    """Holds what biases share: they leave queries and keys as they are.

    A subclass defines `_values(behind)`: the float32 bias `(H, T + S - 1)` for each
    distance, the position of the query minus that of the key.
    """

    is_learned = True  # Whether the bias has a gradient.

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True

    def build(self, query_shape: Shape, key_shape: Shape | None = None) -> None:
        """Takes the number of heads from the queries."""
        check_rank("query", query_shape, "(batch, length, heads, width)")
        self.num_heads = query_shape[2]

    def call(
        self, query: Tensor, key: Tensor | None = None, offset: int | Tensor = 0
    ) -> Tensor:
        """Computes the bias of the scores of `query` and `key`."""
        for name, x in (("query", query), ("key", key)):
            check_rank(name, x, "(batch, length, heads, width)")
        if query.shape[2] != self.num_heads:
            raise ValueError(
                f"`query` must have the {self.num_heads} heads that the layer was "
                f"built for. Received: query.shape={tuple(query.shape)}."
            )
        source = query if key is None else key
        bias = self.bias(ops.shape(query)[1], ops.shape(source)[1], offset)
        return ops.cast(bias.pairs(), self.compute_dtype)

    def bias(
        self,
        target_length: int | Tensor,
        source_length: int | Tensor,
        offset: int | Tensor = 0,
    ) -> DistanceBias:
        """Computes the float32 bias of T queries, the first at `offset`, and S keys."""
        check_built(self)
        check_lengths(target_length, source_length, offset)
        values = self._values(_behind(target_length, source_length, offset))
        return DistanceBias(values, target_length, self.is_learned)

    def rotate(self, x: Tensor, start: int | Tensor = 0) -> Tensor:
        """Returns `x`."""
        check_tensor("x", x, "(batch, length, heads, width)")
        arguments.index("start", start)
        return x

    def compute_mask(self, query: Tensor, mask: Tensor | None = None) -> Tensor | None:
        """Returns None: the bias has no mask."""
        return None

    def compute_output_shape(
        self, query_shape: Shape, key_shape: Shape | None = None
    ) -> Shape:
        """Returns the shape of the bias."""
        for name, shape in (("query", query_shape), ("key", key_shape)):
            check_rank(name, shape, "(batch, length, heads, width)")
        source = query_shape if key_shape is None else key_shape
        return (1, query_shape[2], query_shape[1], source[1])


@keras.saving.register_keras_serializable(package="keras_seqattn")
class RelativeBias(_Bias):
    """Learns a bias of the scores for each head and bucket of distances.

    bias[h, i, j] = table[buckets(i - j), h]. Half of the buckets of a direction hold
    one distance each. The others hold ranges that grow geometrically up to
    `max_distance`; the last one also holds all that is farther. If `bidirectional`,
    each direction has half of `num_buckets`; if not, keys after a query get the bucket
    of distance 0.
    Shapes: B batch, T target length, S source length, H heads, G key heads, K key_dim.

    Args:
        num_buckets: Number of buckets, an integer: even and at least 4 if
            `bidirectional`, else at least 2.
        max_distance: Distance from which on all distances share one bucket; more than
            the number of distances that have a bucket each.
        bidirectional: Whether keys before and after a query have different buckets.
        initializer: Initializer of the table.
        **kwargs: `name`, `dtype`, `trainable`.

    Call arguments:
        query: Float tensor `(B, T, H, K)`, of which only the shape counts.
        key: Float tensor `(B, S, G, K)`; `query` when None.
        offset: Position of the first query among the keys; a scalar tensor in cached
            decoding.

    Returns:
        Float tensor `(1, H, T, S)` in the compute dtype, to be added to scores as
        `dot_product_attention(query, key, value, bias=...)` does.

    Raises:
        ValueError: If `num_buckets` or `max_distance` does not fit, or the layer is
            called with a different number of heads than it was built for.

    Example:
        >>> import numpy as np
        >>> layer = RelativeBias()
        >>> tuple(layer(np.zeros((2, 5, 4, 8)), np.zeros((2, 7, 4, 8))).shape)
        (1, 4, 5, 7)

    Reference:
        Raffel et al. 2020, section 2.1. Differs: the bounds of the buckets are computed
        in integers, so that no rounding moves them; by name, `positions="relative"`
        makes a table for each attention, where T5 has one for all layers of a stack,
        and is bidirectional in a causal decoder too, where T5's is not; scores are
        scaled unless `score="dot"`, and T5's are not.
    """

    def __init__(
        self,
        num_buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool = True,
        initializer: Initializer = "random_normal",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_buckets = arguments.positive_integer("num_buckets", num_buckets)
        self.max_distance = arguments.positive_integer("max_distance", max_distance)
        self.bidirectional = arguments.boolean("bidirectional", bidirectional)
        self.initializer = arguments.keras_object("initializer", initializer)
        self._check_buckets()

    def _check_buckets(self):
        least, even = (
            (4, "an even integer") if self.bidirectional else (2, "an integer")
        )
        if self.num_buckets < least or (self.bidirectional and self.num_buckets % 2):
            raise ValueError(
                f"`num_buckets` must be {even} from {least} on where "
                f"bidirectional={self.bidirectional!r}. "
                f"Received: num_buckets={self.num_buckets!r}."
            )
        exact = self._buckets_of_a_direction() // 2
        if self.max_distance <= exact:
            raise ValueError(
                f"`max_distance` must be more than {exact}, the number of distances "
                "with a bucket of their own. "
                f"Received: max_distance={self.max_distance!r}."
            )

    def _buckets_of_a_direction(self):
        return self.num_buckets // 2 if self.bidirectional else self.num_buckets

    def build(self, query_shape: Shape, key_shape: Shape | None = None) -> None:
        """Makes the table `(num_buckets, H)`."""
        super().build(query_shape, key_shape)
        self.table = self.add_weight(
            name="table",
            shape=(self.num_buckets, self.num_heads),
            initializer=self.initializer,
            autocast=False,  # float32 in a cached step, as in a whole pass
        )

    def _values(self, behind):
        rows = ops.take(self.table, self.buckets(behind), axis=0)  # (T + S - 1, H)
        return ops.cast(ops.transpose(rows), "float32")

    def buckets(self, behind: Tensor) -> Tensor:
        """Returns the bucket of each distance.

        Args:
            behind: Int32 tensor, the position of a query minus that of a key: negative
                if the key comes after the query.

        Returns:
            Int32 tensor of the same shape.

        Raises:
            ValueError: If `behind` is not a tensor of integers.
        """
        check_tensor("behind", behind, integers=True)
        size = self._buckets_of_a_direction()
        distance = ops.abs(behind) if self.bidirectional else ops.maximum(behind, 0)
        table = ops.convert_to_tensor(_bucket_table(size, self.max_distance), "int32")
        bucket = ops.take(table, ops.minimum(distance, self.max_distance), axis=0)
        if not self.bidirectional:
            return bucket
        return bucket + size * ops.cast(behind < 0, "int32")

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {
            **super().get_config(),
            "num_buckets": self.num_buckets,
            "max_distance": self.max_distance,
            "bidirectional": self.bidirectional,
            "initializer": keras.initializers.serialize(self.initializer),
        }


@keras.saving.register_keras_serializable(package="keras_seqattn")
class AlibiBias(_Bias):
    """Subtracts the distance of query and key, times the head's slope, from scores.

    bias[h, i, j] = -slope[h] * |i - j|, the same on both sides, so that it also works
    without a causal mask. For H a power of two the slopes are 2^(-m (h + 1) / H) with
    m = `alibi_bias_max`. For other H they are those of the next lower power of two,
    followed by every second one of the next higher power. Nothing is learned.
    Shapes: B batch, T target length, S source length, H heads, G key heads, K key_dim.

    Args:
        alibi_bias_max: Positive number m: the last slope is 2^-m. A greater m lets some
            heads look farther.
        **kwargs: `name`, `dtype`.

    Call arguments:
        query: Float tensor `(B, T, H, K)`, of which only the shape counts.
        key: Float tensor `(B, S, G, K)`; `query` when None.
        offset: Position of the first query among the keys; a scalar tensor in cached
            decoding.

    Returns:
        Float tensor `(1, H, T, S)` in the compute dtype, to be added to scores as
        `dot_product_attention(query, key, value, bias=...)` does.

    Raises:
        ValueError: If `alibi_bias_max` is not positive, or the layer is called with
            a different number of heads than it was built for.

    Example:
        >>> import numpy as np
        >>> np.asarray(AlibiBias()(np.zeros((1, 3, 8, 4), "float32")))[0, 0].tolist()
        [[-0.0, -0.5, -1.0], [-0.5, -0.0, -0.5], [-1.0, -0.5, -0.0]]

    Reference:
        Press et al. 2022, section 3; other head counts: the authors' code. Differs:
        symmetric without a causal mask, which the paper leaves open.
    """

    is_learned = False

    def __init__(self, alibi_bias_max: float = 8.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.alibi_bias_max = arguments.number(
            "alibi_bias_max", alibi_bias_max, above=0.0
        )

    def _values(self, behind):
        slopes = np.array(_slopes(self.num_heads, self.alibi_bias_max), "float32")
        distances = ops.cast(ops.abs(behind), "float32")
        return -ops.multiply(distances, slopes[:, None])

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {**super().get_config(), "alibi_bias_max": self.alibi_bias_max}


LAYERS = {"rotary": RotaryPositions, "alibi": AlibiBias, "relative": RelativeBias}


def positions_in_attention(
    positions: PositionsInAttention | None, policy: keras.DTypePolicy
) -> keras.layers.Layer | None:
    """Returns the layer that a name or a config stands for, or a given layer."""
    if isinstance(positions, dict):
        deserialize = keras.saving.deserialize_keras_object
        wanted = "the configuration of a layer"
        positions = arguments.interpreted("positions", positions, deserialize, wanted)
    if isinstance(positions, str) and positions in LAYERS:
        return LAYERS[positions](name="positions", dtype=unquantized(policy))
    # The class of such a layer has the methods too, but is no layer.
    has_methods = hasattr(positions, "rotate") and hasattr(positions, "bias")
    if positions is None or (has_methods and not isinstance(positions, type)):
        return positions
    raise ValueError(
        f"`positions` must be one of {tuple(LAYERS)}, None or a layer with the "
        f"methods `rotate` and `bias`. Received: positions={positions!r}."
    )


def _behind(target_length, source_length, offset):
    """Returns all distances `(T + S - 1,)`, a query's position minus a key's."""
    farthest = target_length - 1 + as_int32(offset)
    distances = target_length + source_length - 1
    if isinstance(distances, int):
        distances = max(distances, 0)  # Two empty sequences have no distances.
    elif ops.is_tensor(distances):
        # Two empty sequences of unknown length have one, which broadcasts.
        distances = ops.maximum(distances, 1)
    return farthest - ops.arange(distances, dtype="int32")


@functools.cache
def _bucket_table(size, max_distance):
    """Returns the bucket of each distance up to `max_distance` in one direction.

    From `exact` on, distance n has the bucket exact + floor(log(n / exact) /
    log(max_distance / exact) * wide), where wide = size - exact. In integers, the floor
    is the greatest k for which max_distance^k * exact^(wide - k) <= n^wide.
    """
    exact = size // 2
    wide = size - exact
    bounds = [max_distance**k * exact ** (wide - k) for k in range(1, wide)]
    table, reached = list(range(exact)), 0
    for distance in range(exact, max_distance + 1):
        while reached < len(bounds) and bounds[reached] <= distance**wide:
            reached += 1
        table.append(exact + reached)
    return table


def _slopes(num_heads, bias_max):
    """Returns the slope of each head, as `AlibiBias` describes."""
    lower = 2 ** int(math.log2(num_heads))  # the power of two at or below it
    slopes = [2.0 ** (-bias_max * (head + 1) / lower) for head in range(lower)]
    if lower == num_heads:
        return slopes
    return slopes + _slopes(2 * lower, bias_max)[::2][: num_heads - lower]
