"""`generate`: a model's search of many sentences, in few compiled programs.

There are two policies. In static batches (`static`) sentences begin together. In
continuous batching (`continuous`) a sentence begins when another has ended. `make_plan`
chooses continuous batching if the model can begin a sentence late, several threads
search, and there are more sentences than rows in their programs. It also says how many
sentences a program searches at once. Where sources are so long that a program takes no
more of them than it has rows, `decode_lists` makes it a static batch all the same.
Shapes: B sentences, S source length, L capacity in generated tokens, P prefix length, N
hypotheses.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_seqattn import arguments
from keras_seqattn.backend import compile
from keras_seqattn.decoding.constrained import with_constraints
from keras_seqattn.decoding.constraints import (
    Constraints,
    Row,
    check_lengths,
    checked_constraints,
    make_constraints,
    table_size,
)
from keras_seqattn.decoding.hypotheses import (
    Hypotheses,
    SpecialTokens,
    hypotheses,
    pad_lists,
)
from keras_seqattn.decoding.ids import (
    check_prefix_lengths,
    check_prompts,
    check_range,
    checked_ids,
    checked_prefix,
)
from keras_seqattn.decoding.methods import (
    Search,
    checked_search,
    sequence_seeds,
    without_seed,
)
from keras_seqattn.decoding.protocol import (
    abilities,
    check_model,
    check_parts,
    default_max_length,
    is_language_model,
    length_limit,
    max_new_tokens,
)
from keras_seqattn.scheduling import continuous, static
from keras_seqattn.scheduling.static import (
    BATCH_SIZES,
    SHORTEST,
    ProgramOptions,
    Sentences,
    pad_to_length,
    padded_length,
)

# When several programs run at once: the fewest and the most rows that are planned for
# one. Few sentences, or long ones, get fewer.
BATCH_SIZE_PER_THREAD = (16, 32)
# By how many tokens the first capacity exceeds the source: most translations fit.
EXTRA_CAPACITY = 8
# Most tokens of a line of text if neither the model nor the caller sets a limit.
MOST_TOKENS = 1024
# Most positions of one program: its rows times their beams times the tokens of a source
# and of its translation. This bounds its memory: 64 sentences of 512 tokens in greedy
# search, 16 of them with 5 beams, fewer of longer ones.
MOST_POSITIONS = 2**17


class Plan(NamedTuple):
    """How many sentences are searched at once, and by which policy."""

    size: int  # most sentences that a program searches at once, its rows
    continuous: bool  # whether more sentences wait in the program for a free row
    width: int = 1  # number of beams per sentence

    def size_of(self, length: int, generated: int) -> int:
        """Returns the number of rows for padded lengths of source and translation.

        It is `size` if that many rows fit in `MOST_POSITIONS`, else the largest of
        `BATCH_SIZES` that fits, and at least 1.

        Example:
            >>> [Plan(64, False, width=4).size_of(n, n) for n in (256, 512, 99999)]
            [64, 32, 1]
        """
        most_rows = MOST_POSITIONS // (self.width * (length + generated))
        if most_rows >= self.size:
            return self.size
        return max((size for size in BATCH_SIZES if size <= most_rows), default=1)


def make_plan(count: int, width: int = 1, supports_late_start: bool = False) -> Plan:
    """Plans the fastest search of `count` sentences.

    The size is one of `BATCH_SIZES`, or 2. `supports_late_start` says whether the model
    can begin a sentence while others go on.
    """
    threads = compile.num_threads()
    if threads > 1:
        fewest, most = BATCH_SIZE_PER_THREAD
    else:
        fewest = most = BATCH_SIZES[-1]
    share = min(max(-(-count // threads), fewest), most)
    size = static.rounded_size(min(count, share), width)
    some_would_wait = count > threads * most
    return Plan(size, supports_late_start and threads > 1 and some_would_wait, width)


def generate(
    model: Any,
    source_ids: np.ndarray | Sequence[Sequence[int]],
    search: Search | None = None,
    max_length: int | None = None,
    prefix: np.ndarray | Sequence[Sequence[int]] | None = None,
    constraints: Sequence[Sequence[Any]] | None = None,
) -> Hypotheses:
    """Decodes a batch of source sentences with any model that has the protocol.

    `model` has `encode(source_ids) -> memory`, `initial_state(memory, max_length,
    width) -> state` and `step(token_ids, state, index) -> (logits, state)`. If it has
    `grow_state(state, max_length, index) -> state` too, a large batch without a
    `max_length` begins with less memory; if its `step` also takes `start`, many
    sentences are batched continuously, with TensorFlow or JAX on a CPU of several
    cores. Batches and lengths are padded to a few sizes, so few programs are compiled,
    once for each model and search; `compile_report(model)` counts them.

    Args:
        model: The model. Its attributes `start_id`, `end_id`, `pad_id` and `variables`
            are used and, if it has them, `max_length`, `source_vocabulary_size` and
            `target_vocabulary_size`, against which lengths and ids are checked.
        source_ids: Int array `(B, S)`, padded with the model's `pad_id`, or a list of
            lists of integers; a language model's prompts are padded at their ends.
        search: The search; `Greedy()` when None.
        max_length: Largest number of generated tokens, end included. When None, twice
            the tokens of each sentence plus 10, or the model's own limit if less.
        prefix: Int array `(B, P)` of forced first tokens, padded with `pad_id`, or a
            list of B lists of integers, or None.
        constraints: List of B lists of phrases that each hypothesis must contain, at
            any place; or None. A phrase is a list of token ids, or a tuple of such
            lists, one of which is enough. A greedy search becomes a `BeamSearch` of 4
            beams.

    Returns:
        The `Hypotheses`, in the order of `source_ids`.

    Raises:
        ValueError: If `source_ids` are not integers of rank 2, hold an id outside the
            vocabulary, are a language model's prompts with padding before a token or
            without any, are longer than the model's `max_length`, or leave it nothing
            to generate; if `max_length` is more than the model can generate; if
            `search` is not a search, has a `coverage_penalty` that the model does not
            support, or is a `Sample` and there are `constraints`; if `prefix` or
            `constraints` do not fit the limit of their sentence, or hold an id outside
            the vocabulary; if a phrase holds a special token or one that the search
            never generates; or if `model` lacks a part of the protocol, or a method of
            it returns structures or shapes that differ from the protocol's.

    Example:
        >>> import numpy as np
        >>> from keras_seqattn.models import TranslationTransformer
        >>> model = TranslationTransformer(50, model_dim=16, intermediate_dim=32)
        >>> found = generate(model, np.array([[5, 7, 2]]), max_length=4)
        >>> found.token_ids.shape
        (1, 1, 4)
    """
    check_parts(model)
    size = getattr(model, "source_vocabulary_size", None)
    source_ids = checked_ids("source_ids", source_ids, size, model.pad_id)
    if is_language_model(model):
        check_prompts("source_ids", source_ids, model.pad_id)
    _check_source_length(model, source_ids.shape[1])
    _check_max_length(model, source_ids.shape[1], max_length)
    limits = _limits(model, source_ids, max_length)
    if limits.max() < 1:
        raise ValueError(
            "`source_ids` must leave the model at least one token to generate. "
            f"Received: source_ids of length {source_ids.shape[1]}."
        )
    size = getattr(model, "target_vocabulary_size", None)
    size = size or getattr(model, "vocabulary_size", None)  # a language model's
    if prefix is not None:
        prefix = checked_prefix(prefix, limits, model.pad_id, size)
    rows = None
    if constraints is not None:
        search = with_constraints(checked_search("search", search))
        rows = checked_constraints(
            constraints,
            len(source_ids),
            size,
            SpecialTokens(model.start_id, model.end_id, model.pad_id),
            (*search.banned_ids, *search.stop_ids),
        )
    return decode(model, source_ids, search, max_length, prefix, rows)


def decode(
    model: Any,
    source_ids: np.ndarray,
    search: Search | None = None,
    max_length: int | None = None,
    prefix: np.ndarray | None = None,
    constraints: Sequence[Row] | None = None,
) -> Hypotheses:
    """Does what `generate` does, on arrays already checked.

    `constraints` are for a `ConstrainedBeamSearch`; their lengths are checked here.
    """
    if prefix is not None:
        prefix = [row[row != model.pad_id].tolist() for row in prefix]
    # Without the padding at their ends, so that those of similar length are together.
    lists = [
        row[: len(np.trim_zeros(row != model.pad_id, "b"))].tolist()
        for row in source_ids
    ]
    given = {"prefixes": prefix, "max_length": max_length, "constraints": constraints}
    numbers, parts = zip(*decode_lists(model, lists, search, **given), strict=True)
    length = max(part.token_ids.shape[-1] for part in parts)
    parts = [
        part._replace(token_ids=pad_to_length(part.token_ids, length, 0))
        for part in parts
    ]
    order = np.argsort(np.concatenate(numbers))
    return Hypotheses(*(np.concatenate(x)[order] for x in zip(*parts, strict=True)))


def decode_lists(
    model: Any,
    lists: Sequence[Sequence[int]],
    search: Search | None = None,
    chosen: Sequence[int] | None = None,
    prefixes: Sequence[Sequence[int]] | None = None,
    first: int = 0,
    max_length: int | None = None,
    constraints: Sequence[Row] | None = None,
) -> Iterator[tuple[list[int], Hypotheses]]:
    """Decodes lists of token ids, those of similar length together, for speed.

    Only the lists at the indices `chosen` are decoded, by default all. `prefixes`, the
    forced first tokens, and `constraints`, rows of phrases for a
    `ConstrainedBeamSearch`, have an entry for each of `lists`. `first` is the number of
    the first list among all that are searched, so that a sample does not depend on the
    sentences searched beside it. Yields indices and the `Hypotheses` of their lists.
    """
    method = checked_search("search", search)
    chosen = range(len(lists)) if chosen is None else chosen
    if not len(chosen):
        return  # A search of nothing draws no seed.
    prefixes = [()] * len(lists) if prefixes is None else prefixes
    seeds = sequence_seeds(first + np.arange(len(lists)), method)
    can_start_late = {"start", "grow"} <= abilities(model)
    plan = make_plan(len(chosen), method.width, can_start_late)
    limits = _limits(model, lists, max_length)
    check_prefix_lengths(
        [prefixes[i] for i in chosen],
        [limits[i] for i in chosen],
        [first + i for i in chosen],
    )
    if constraints is not None:
        check_lengths(constraints, limits, map(len, prefixes), first)
        sizes = table_size(constraints)
    # The longest first, as `schedule` needs them.
    lengths = {
        index: padded_length(model, len(lists[index]), plan.continuous)
        for index in sorted(chosen, key=lambda index: -len(lists[index]))
    }

    def size_of(length: int) -> int:
        return plan.size_of(length, _capacity(model, length, max_length))

    def search_lists(
        batch: list[int], length: int, to_the_end: bool = True
    ) -> tuple[list[int], Hypotheses, list[int]]:
        some = [lists[index] for index in batch]
        prefix = [prefixes[index] for index in batch]
        tables = ()
        if constraints is not None:
            rows = [constraints[index] for index in batch]
            tables = make_constraints(rows, model.pad_id, sizes)
        sentences = _sentences(
            model, some, length, limits[batch], seeds[batch], prefix, tables
        )
        size = size_of(length)
        # What counts is the most sentences that a program of this length takes, not
        # those of this batch: if they are no more than its rows, none ever waits.
        some_may_wait = plan.continuous and continuous.most_sentences(length) > size
        if not some_may_wait:
            size = static.num_rows(len(batch), length, size, plan.width)
        options = _program_options(model, method, size, sentences, max_length)
        token_ids, scores, ended = _search(
            model, options, some_may_wait, sentences, to_the_end
        )
        longest = max(1, sentences.limits.max())
        token_ids = token_ids[ended, :, :longest]
        found = hypotheses(token_ids, scores[ended], options.tokens)
        batch = np.asarray(batch)
        return batch[ended].tolist(), found, batch[~ended].tolist()

    schedule = continuous.schedule if plan.continuous else static.schedule
    yield from schedule(search_lists, size_of, lengths)


def _search(
    model: Any,
    options: ProgramOptions,
    some_may_wait: bool,
    sentences: Sentences,
    to_the_end: bool = True,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Searches sentences in one program.

    Unless `to_the_end`, sentences that the program leaves unfinished stay so. Returns
    token ids `(B, N, L)`, scores `(B, N)`, and which were searched to the end.
    """
    policy = continuous.search_continuously if some_may_wait else static.search_batch
    state = policy(model, options, sentences, to_the_end)
    return *options.method.results(state), state.finished


def prepare_one(
    model: Any, ids: list[int], search: Search, max_length: int | None = None
) -> tuple[Sentences, ProgramOptions]:
    """Returns what a search of one sentence needs, for the loop of `streaming`.

    The `Sentences` are filled to the program's size.
    """
    length = padded_length(model, len(ids))
    limits = _limits(model, [ids], max_length)
    seeds = sequence_seeds(np.arange(1), search)
    sentences = _sentences(model, [ids], length, limits, seeds, prefixes=[()])
    options = _program_options(model, search, make_plan(1).size, sentences, max_length)
    return sentences.fill(options.size), options


def _sentences(
    model: Any,
    lists: Sequence[Sequence[int]],
    length: int,
    limits: np.ndarray,
    seeds: np.ndarray,
    prefixes: Sequence[Sequence[int]],
    constraints: Constraints | tuple[()] = (),
) -> Sentences:
    """Makes the `Sentences` of lists of token ids, which are padded to a length."""
    prefix = np.zeros((len(lists), 0), "int32")
    if any(map(len, prefixes)):
        prefix = pad_lists(prefixes, model.pad_id)
        total = padded_length(model, prefix.shape[1])
        prefix = pad_to_length(prefix, total, model.pad_id)
    source_ids = pad_lists(lists, model.pad_id)
    return Sentences(
        source_ids=pad_to_length(source_ids, length, model.pad_id),
        limits=limits,
        seeds=seeds,
        prefix=prefix,
        constraints=constraints,
    )


def _program_options(
    model: Any,
    method: Search,
    size: int,
    sentences: Sentences,
    max_length: int | None = None,
) -> ProgramOptions:
    """Checks the model; returns what the programs for sentences are compiled for."""
    check_coverage(model, method)
    length = sentences.source_ids.shape[1]
    capacity = _capacity(model, length, max_length)
    limit = max(1, int(sentences.limits.max()))  # Prompts may leave a batch nothing.
    if capacity < limit:
        # A prompt shorter than the padded length leaves more of a model's limit for
        # generated tokens; that number differs for each length, so it is padded.
        capacity = padded_length(model, limit)
    first = capacity
    grows = max_length is None and "grow" in abilities(model)
    stops_early = size in static.TAILS  # The tail goes on with the whole capacity.
    if grows and stops_early:
        first = min(capacity, length + EXTRA_CAPACITY)
    coverage = method.needs_coverage
    vocabulary_size = check_model(model, (size, length), first, method.width, coverage)
    _check_forced(sentences, model.pad_id, vocabulary_size)
    tokens = SpecialTokens(model.start_id, model.end_id, model.pad_id)
    return ProgramOptions(without_seed(method), tokens, size, first, capacity)


def _check_forced(sentences: Sentences, pad_id: int, size: int | None) -> None:
    """Checks the ids of prefixes and phrases against the logits' size, if known."""
    forced = {"prefix": sentences.prefix}
    if sentences.constraints:
        forced["constraints"] = sentences.constraints.tokens
    for name, ids in forced.items():
        check_range(name, ids[ids != pad_id], size)


def _capacity(model: Any, length: int, max_length: int | None = None) -> int:
    """Returns the most tokens generated for a source as long as a padded length."""
    if max_length is None:
        return token_limit(model, length)
    own_limit = max_new_tokens(model, 0)
    rounded = -(-max_length // SHORTEST) * SHORTEST
    return rounded if own_limit is None else min(rounded, own_limit)


def _limits(
    model: Any, sources: Iterable[Sequence[int]], max_length: int | None
) -> np.ndarray:
    """Returns the largest number of generated tokens of each sentence, int32 `(B,)`."""
    lengths = [len(ids) - list(ids).count(model.pad_id) for ids in sources]
    return np.array([token_limit(model, n, max_length) for n in lengths], "int32")


def token_limit(model: Any, source_length: int, max_length: int | None = None) -> int:
    """Returns the number of generated tokens that the caller and the model allow."""
    limit = default_max_length(source_length) if max_length is None else max_length
    own_limit = max_new_tokens(model, source_length)
    return limit if own_limit is None else min(limit, own_limit)


def constraint_limits(
    model: Any,
    sources: Sequence[Sequence[int]],
    forced: Sequence[Sequence[int]],
) -> list[int]:
    """Returns how many tokens the constraints of each sentence may have together.

    They do not include the sentence's `forced` first tokens and its end.
    """
    limits = _limits(model, sources, None)
    return [int(limit) - 1 - len(x) for limit, x in zip(limits, forced, strict=True)]


def source_limit(model: Any) -> int:
    """Returns how many tokens of a line of text are read at most, its end included."""
    return length_limit(model) or MOST_TOKENS


def forced_prefixes(tokenizer: Any, count: int) -> list[list[int]]:
    """Returns the forced first tokens of each of `count` translations.

    They are the tokenizer's `prefix_ids`, such as the token of a language, if any.
    """
    return [list(getattr(tokenizer, "prefix_ids", ()))] * count


def check_coverage(model: Any, search: Search) -> None:
    """Raises an error if a search has a penalty that the model does not support."""
    if search.needs_coverage and "coverage" not in abilities(model):
        raise ValueError(
            "`search` must have a `coverage_penalty` of 0 for a model whose "
            "`initial_state` takes no `coverage`. "
            f"Received: search={search!r}."
        )


def _check_source_length(model: Any, length: int) -> None:
    max_length = length_limit(model)
    if max_length is not None and length > max_length:
        raise ValueError(
            f"`source_ids` must be no longer than {max_length}, the model's "
            f"`max_length`. Received: source_ids of length {length}."
        )


def _check_max_length(model: Any, source_length: int, max_length: int | None) -> None:
    if max_length is None:
        return
    arguments.positive_integer("max_length", max_length)
    own_limit = max_new_tokens(model, source_length)
    if own_limit is not None and max_length > own_limit:
        is_own = own_limit == length_limit(model)
        after = "" if is_own else f" after a prompt of length {source_length}"
        raise ValueError(
            f"`max_length` must be at most {own_limit}, the most that the model can "
            f"generate{after}. Received: max_length={max_length!r}."
        )
