"""Search over a step function; knows no model and no layer.

Shapes: B sentences, W beams, S source length, L generated length, V vocabulary.
"""

import dataclasses
import weakref
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from keras_seqattn.compiled import CompiledFunction

# What a program is compiled for: every batch and length is padded to one of these.
BATCH_SIZES = (1, 4, 16, 64)
LENGTH_MULTIPLE = 16


class Hypotheses(NamedTuple):
    """What a search found, best first: N hypotheses for each of B sentences.

    Attributes:
        token_ids: Int32 array `(B, N, L)` without start and end, padded with 0.
        lengths: Int32 array `(B, N)`, the number of those tokens.
        scores: Float32 array `(B, N)`: the log-probability, end token included.

    Example:
        >>> import numpy as np
        >>> one = np.zeros((1, 1), "int32")
        >>> Hypotheses(np.zeros((1, 1, 4), "int32"), one, one.astype("float32")).lengths
        array([[0]], dtype=int32)
    """

    token_ids: np.ndarray
    lengths: np.ndarray
    scores: np.ndarray


@keras.saving.register_keras_serializable(package="keras_seqattn")
@dataclasses.dataclass(frozen=True)
class Greedy:
    """Takes the most probable token at each step.

    Example:
        >>> Greedy().get_config()
        {}
    """

    def get_config(self):
        """Gives the constructor's arguments."""
        return dataclasses.asdict(self)

    @classmethod
    def from_config(cls, config):
        """Makes the search from its constructor's arguments."""
        return cls(**config)

    def run(self, step, state, *, batch_size, max_length, limit, tokens):
        """Searches, as `keras.ops` that compile.

        Args:
            step: The step function.
            state: Its first state.
            batch_size: Number of sentences B.
            max_length: Room for generated tokens L, an integer.
            limit: Number of tokens at most, a scalar int32 tensor <= L.
            tokens: The `SpecialTokens`.

        Returns:
            Token ids `(B, 1, L)`, end included, and scores `(B, 1)`.
        """

        def going_on(index, token, finished, *_):
            return ops.logical_and(index < limit, ops.any(ops.logical_not(finished)))

        def advance(index, token, finished, token_ids, scores, state):
            logits, state = step(token, state, index)
            log_probs = ops.log_softmax(ops.cast(logits, "float32"))  # (B, 1, V)
            allowed = tokens.mask_never_generated(log_probs)
            token = ops.argmax(allowed, axis=-1)
            best = ops.max(allowed, axis=-1)
            token = ops.where(finished, tokens.pad_id, ops.cast(token, "int32"))
            scores = scores + ops.where(finished, 0.0, best)
            token_ids = ops.slice_update(token_ids, (0, 0, index), token[..., None])
            finished = ops.logical_or(finished, ops.equal(token, tokens.end_id))
            return index + 1, token, finished, token_ids, scores, state

        shape = (batch_size, 1)
        first = (
            ops.convert_to_tensor(0, "int32"),
            ops.full(shape, tokens.start_id, "int32"),
            ops.zeros(shape, "bool"),
            ops.full((*shape, max_length), tokens.pad_id, "int32"),
            ops.zeros(shape, "float32"),
            state,
        )
        _, _, _, token_ids, scores, _ = ops.while_loop(going_on, advance, first)
        return token_ids, scores


class SpecialTokens(NamedTuple):
    """The ids with a meaning: the first token, the last, and padding."""

    start_id: int = 1
    end_id: int = 2
    pad_id: int = 0

    def mask_never_generated(self, log_probs):
        """Forbids padding and start, after the softmax: scores stay the model's."""
        ids = ops.arange(log_probs.shape[-1], dtype="int32")
        never = (ids == self.pad_id) | (ids == self.start_id)
        return ops.where(never, -1e9, log_probs)


def search(
    step,
    state,
    *,
    batch_size,
    max_length,
    start_id=1,
    end_id=2,
    pad_id=0,
    method=None,
):
    """Searches for likely sequences under any step function.

    The whole search is one XLA program on TensorFlow and JAX; torch runs the same
    steps eagerly. It ends as soon as every sentence has ended.

    Args:
        step: `step(token_ids, state, index) -> (logits, state)` in `keras.ops`:
            token ids int32 `(B, W)`, index a scalar int32 tensor, logits
            `(B, W, V)`.
        state: Structure of arrays with static shapes: `{"beam": tensors (B, W, ...),
            "sentence": tensors (B, ...)}`.
        batch_size: Number of sentences B.
        max_length: Number of generated tokens at most, end included.
        start_id: The token every sentence starts with; never generated.
        end_id: The token that ends a sentence.
        pad_id: What fills a sentence that has ended; never generated.
        method: The search; `Greedy()` when None.

    Returns:
        The `Hypotheses`.

    Raises:
        ValueError: If `batch_size` or `max_length` is not a positive integer.

    Example:
        >>> import numpy as np
        >>> from keras import ops
        >>> def step(token_ids, state, index):  # says 5, 5, ... and ends at index 2
        ...     token = ops.where(index < 2, 5, 2)
        ...     logits = ops.one_hot(token, 8)[None, None] * 9.0
        ...     return logits, state
        >>> found = search(step, {"beam": {}, "sentence": {}}, batch_size=1,
        ...                max_length=6)
        >>> found.token_ids[0, 0].tolist(), found.lengths.tolist()
        ([5, 5, 0, 0, 0, 0], [[2]])

    Reference:
        Sutskever et al. 2014, section 3.2. Differs: none.
    """
    for name, value in (("batch_size", batch_size), ("max_length", max_length)):
        _check_positive(name, value)
    tokens = SpecialTokens(start_id, end_id, pad_id)

    def program(state, limit):
        return (method or Greedy()).run(
            step,
            state,
            batch_size=batch_size,
            max_length=max_length,
            limit=limit,
            tokens=tokens,
        )

    found = CompiledFunction(program)(state, np.int32(max_length))
    return _hypotheses(*found, tokens)


def generate(model, source_ids, search=None, max_length=None):
    """Decodes a batch of source sentences with any model that has the protocol.

    `model` has `encode(source_ids) -> memory`, `initial_state(memory, max_length,
    width) -> state` and `step(token_ids, state, index) -> (logits, state)`. Batches and
    lengths are padded to few sizes, so few programs are compiled, each once a model
    and search; `programs(model)` counts them.

    Args:
        model: The model. Its attributes `start_id`, `end_id` and `pad_id` are used.
        source_ids: Int array `(B, S)`, padded with the model's `pad_id`.
        search: The search; `Greedy()` when None.
        max_length: Number of generated tokens at most, end included;
            min(2 S + 10, the model's own) when None.

    Returns:
        The `Hypotheses`, in the order of `source_ids`.

    Raises:
        ValueError: If `source_ids` is not an integer array of rank 2, holds an id
            outside the vocabulary, is longer than the model's `max_length`, or
            `max_length` is more than that.

    Example:
        >>> import numpy as np
        >>> from keras_seqattn.models import TranslationTransformer
        >>> model = TranslationTransformer(50, model_dim=16, intermediate_dim=32)
        >>> found = generate(model, np.array([[5, 7, 2]]), max_length=4)
        >>> found.token_ids.shape
        (1, 1, 4)
    """
    source_ids = _checked_source(model, source_ids)
    length = source_ids.shape[1]
    _check_source_length(model, length)
    limit = _length_limit(model, length, max_length)
    room = max_length or max(limit, _wanted(model, _round_up(length, LENGTH_MULTIPLE)))
    tokens = SpecialTokens(model.start_id, model.end_id, model.pad_id)
    program = _program(model, search or Greedy(), room, tokens)
    found = [
        tuple(array[:rows] for array in program(padded, np.int32(limit)))
        for rows, padded in _padded_chunks(model, source_ids)
    ]
    token_ids, scores = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
    return _hypotheses(token_ids[..., :limit], scores, tokens)


def programs(model):
    """Gives the programs that `generate` compiled for a model.

    Args:
        model: The model.

    Returns:
        A list of `CompiledFunction`, each with `num_programs` and `compile_seconds`.

    Example:
        >>> programs(object.__new__(type("Model", (), {})))
        []
    """
    return list(_PROGRAMS.get(model, {}).values())


_PROGRAMS = weakref.WeakKeyDictionary()


def _program(model, search, room, tokens):
    """Gives the model's program for a search, made at the first call."""
    reference = weakref.ref(model)  # the dict must not keep its own key alive

    def run(source_ids, limit):
        model = reference()
        return search.run(
            model.step,
            model.initial_state(model.encode(source_ids), room, width=1),
            batch_size=source_ids.shape[0],
            max_length=room,
            limit=limit,
            tokens=tokens,
        )

    # `quantize` and `enable_lora` exchange variables: then the program is another.
    key = (search, room, tokens, *map(id, model.variables))
    made = _PROGRAMS.setdefault(model, {})
    if key not in made:
        made[key] = CompiledFunction(run, model.variables)
    return made[key]


def _padded_chunks(model, source_ids):
    """Cuts a batch into chunks of few shapes; the rows added repeat the last one."""
    length = _round_up(source_ids.shape[1], LENGTH_MULTIPLE)
    length = min(length, getattr(model, "max_length", None) or length)
    for start in range(0, len(source_ids), BATCH_SIZES[-1]):
        chunk = source_ids[start : start + BATCH_SIZES[-1]]
        size = next(size for size in BATCH_SIZES if size >= len(chunk))
        padding = ((0, 0), (0, length - chunk.shape[1]))
        padded = np.pad(chunk, padding, constant_values=model.pad_id)
        padded = np.pad(padded, ((0, size - len(chunk)), (0, 0)), mode="edge")
        yield len(chunk), padded


def _round_up(number, multiple):
    return -(-number // multiple) * multiple


def _checked_source(model, source_ids):
    source_ids = np.asarray(source_ids)
    if source_ids.ndim != 2 or 0 in source_ids.shape:
        raise ValueError(
            "`source_ids` must have rank 2, (batch, length), and not be empty. "
            f"Received: source_ids.shape={source_ids.shape}."
        )
    if not np.issubdtype(source_ids.dtype, np.integer):
        raise ValueError(
            "`source_ids` must be integers. "
            f"Received: source_ids of dtype {source_ids.dtype.name!r}."
        )
    size = getattr(model, "source_vocabulary_size", None)
    low, high = source_ids.min(), source_ids.max()
    if low < 0 or (size is not None and high >= size):
        raise ValueError(
            f"`source_ids` must be in [0, {size}), the model's vocabulary. "
            f"Received: ids from {low} to {high}."
        )
    return source_ids.astype("int32")


def _check_source_length(model, length):
    most = getattr(model, "max_length", None)
    if most is not None and length > most:
        raise ValueError(
            f"`source_ids` must be no longer than {most}, the model's `max_length`. "
            f"Received: source_ids of length {length}."
        )


def _length_limit(model, source_length, max_length):
    if max_length is None:
        return _wanted(model, source_length)
    _check_positive("max_length", max_length)
    most = _most_generated(model, source_length)
    if most is not None and max_length > most:
        raise ValueError(
            f"`max_length` must be at most {most}, the model's own. "
            f"Received: max_length={max_length!r}."
        )
    return max_length


def _wanted(model, source_length):
    """Gives the number of tokens where the caller names none."""
    wanted, most = 2 * source_length + 10, _most_generated(model, source_length)
    return wanted if most is None else min(wanted, most)


def _most_generated(model, source_length):
    """Gives the model's own limit; a language model's counts the prompt too."""
    if hasattr(model, "most_generated"):
        return model.most_generated(source_length)
    return getattr(model, "max_length", None)


def _check_positive(name, value):
    if not isinstance(value, int) or value <= 0:
        raise ValueError(
            f"`{name}` must be a positive integer. Received: {name}={value!r}."
        )


def _hypotheses(token_ids, scores, tokens):
    """Cuts each sequence before its end token."""
    length = token_ids.shape[-1]
    ends = token_ids == tokens.end_id
    lengths = np.where(ends.any(-1), ends.argmax(-1), length)
    token_ids = np.where(np.arange(length) < lengths[..., None], token_ids, 0)
    return Hypotheses(
        token_ids.astype("int32"), lengths.astype("int32"), scores.astype("float32")
    )
