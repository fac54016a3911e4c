"""Batches of lines for training a language model with `fit`."""

from collections.abc import Sequence

from keras_seqattn.annotations import Dataset, Lines, Path, TokenizerLike
from keras_seqattn.text.batching import check_tokenizer, plan_epochs
from keras_seqattn.text.copies import Copies
from keras_seqattn.text.datasets import make_batches
from keras_seqattn.text.lines import TextLines
from keras_seqattn.text.mixing import Corpus


def language_batches(
    lines: Lines | TextLines,
    tokenizer: TokenizerLike,
    batch_tokens: int = 4096,
    bucket_lengths: Sequence[int] = (16, 32, 64),
    shuffle: bool = True,
    seed: int = 0,
    sampling: float = 0.0,
    rows_multiple: int = 1,
    cache: Path | None = None,
) -> Dataset:
    """Makes batches for training and evaluating a `LanguageModel`.

    Each element is `(start + x, x + end)`, int32, padded with `tokenizer.pad_id`: at
    every position the label is the token that comes next. Buckets, order and sampling
    are those of `translation_batches`.

    Args:
        lines: List of strings or `TextLines`, each line a text of its own. Those
            without a token, such as the blank lines of a file, are left out. A line
            break at the end of a string is part of the text.
        tokenizer: Tokenizer of the lines.
        batch_tokens: Most positions in a batch, padding included; at least the last of
            `bucket_lengths` times `rows_multiple`.
        bucket_lengths: Increasing lengths of the buckets, ends included. Lines longer
            than the last are left out, with a warning.
        shuffle: Whether to shuffle; if not, batches come bucket by bucket, in the given
            order.
        seed: Integer seed of the shuffling and of the sampling, at least 0.
        sampling: Strength of subword sampling (see the tokenizer), 0 for none.
        rows_multiple: Number that divides the rows of every batch.
        cache: Path of a folder for the token ids, as in `translation_batches`, not with
            `sampling`; None: they stay in memory.

    Returns:
        What `translation_batches` returns, with the same attributes.

    Raises:
        ValueError: If `lines` is not a list of strings, or all are blank; if no line
            fits; if the numbers given do not describe batches; if the tokenizer's
            `pad_id` is its `end_id`; or if `cache` comes with `sampling`, holds other
            token ids, or is being written by another process.

    Example:
        >>> import numpy as np
        >>> from keras_seqattn.text import ByteTokenizer
        >>> for inputs, labels in language_batches(
        ...     ["one", "two"], ByteTokenizer(), batch_tokens=64, shuffle=False
        ... ):
        ...     print(np.asarray(inputs)[0, :5], np.asarray(labels)[0, :5])
        [  1 115 114 105   0] [115 114 105   2   0]
    """
    check_tokenizer("tokenizer", tokenizer)
    epochs, skipped = plan_epochs(
        [Corpus(lines, lines, names=("lines", "lines"))],
        (tokenizer,),
        Copies(sampling=sampling),
        batch_tokens=batch_tokens,
        bucket_lengths=bucket_lengths,
        shuffle=shuffle,
        seed=seed,
        rows_multiple=rows_multiple,
        cache=cache,
    )
    return make_batches(epochs, skipped)
