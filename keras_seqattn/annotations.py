"""Names of the types in public signatures.

Where Keras has no type of its own, a name stands for `Any` and only tells the reader
what is meant: the tensors of the three backends, for one, have no class in common.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import keras
import numpy as np

# A tensor of the active backend, a `keras.KerasTensor`, or a NumPy array where it is
# converted to a tensor.
Tensor: TypeAlias = Any
ArrayLike: TypeAlias = Any  # what `numpy.asarray` takes
Dataset: TypeAlias = Any  # what `fit` takes as `x`, such as a `tf.data.Dataset`

Shape: TypeAlias = Sequence[int | None]
TokenIds: TypeAlias = np.ndarray | Sequence[Sequence[int]] | Tensor
# Nested dicts of tensors that decoding passes from step to step.
State: TypeAlias = dict[str, Any]
Lines: TypeAlias = list[str] | tuple[str, ...]  # not a single string
Path: TypeAlias = str | os.PathLike[str]
# A dict from each source phrase to its target phrase, or to alternative target phrases;
# or the path of a file of such pairs.
Glossary: TypeAlias = dict[str, str | tuple[str, ...]] | Path
Seed: TypeAlias = int | keras.random.SeedGenerator | None

# Each may be a name, the object, its configuration, or a function.
Activation: TypeAlias = str | dict[str, Any] | Callable[[Tensor], Tensor] | None
Constraint: TypeAlias = str | dict[str, Any] | Callable[[Tensor], Tensor] | None
Dtype: TypeAlias = str | dict[str, Any] | keras.DTypePolicy | None
Initializer: TypeAlias = str | dict[str, Any] | Callable[..., Tensor]
Regularizer: TypeAlias = str | dict[str, Any] | Callable[[Tensor], Tensor] | None

AttentionKind: TypeAlias = Literal["cross", "encoder", "decoder"]
Cell: TypeAlias = Literal["gru", "simple"]
ExportFormat: TypeAlias = Literal["saved_model", "ctranslate2", "onnx"]
Implementation: TypeAlias = Literal["auto", "explicit", "fused", "chunked"]
Norm: TypeAlias = Literal["layer", "rms"]
PositionsInAttention: TypeAlias = (
    Literal["rotary", "relative", "alibi"] | dict[str, Any] | keras.layers.Layer
)

# Which layers `quantize` changes: patterns of their names, or a function of a layer.
Filters: TypeAlias = str | Iterable[str] | Callable[[keras.layers.Layer], bool]


class DecodingModel(Protocol):
    """A model that can decode: the protocol that `decoding.generate` and others call.

    `docs/architecture.md` says what the three methods take and return, and which
    optional attributes and methods are used if a model has them.
    """

    start_id: int
    end_id: int
    pad_id: int

    @property
    def variables(self) -> Iterable[Any]:
        """The Keras variables that the methods read."""
        ...

    @property
    def encode(self) -> Callable[..., State]:
        """Encodes source ids as the memory that `initial_state` takes."""
        ...

    @property
    def initial_state(self) -> Callable[..., State]:
        """Makes the state before the first step from the memory."""
        ...

    @property
    def step(self) -> Callable[..., tuple[Tensor, State]]:
        """Computes the logits of the next tokens, and the state after them."""
        ...


class TokenizerLike(Protocol):
    """Converts strings to token ids and back, as the tokenizers of `text` do.

    Batches also need `start_id`, `end_id` and `pad_id`, with `cutoff` `unknown_id`, and
    with `sampling` the arguments `sampling` and `seed` of `tokenize`.
    """

    @property
    def vocabulary_size(self) -> int:
        """The number of ids."""
        ...

    def tokenize(self, lines: Any) -> Any:
        """Converts strings to token ids."""
        ...

    def detokenize(self, ids: Any) -> list[str]:
        """Converts token ids to strings."""
        ...
