"""The text of a study, as batches for each vocabulary that a trial may have."""

import functools
import hashlib
import json
from typing import Any

import keras

from keras_seqattn import training
from keras_seqattn.annotations import Dataset

# Translating a line takes about as long as training on one. So a score translates at
# most SCORED_SHARE times as many lines as there are for training. FEWEST_SCORED lines
# are always allowed, so that a score tells trials apart.
SCORED_SHARE, FEWEST_SCORED = 0.1, 200


def most_scored(pairs: int) -> int:
    """Returns how many lines a score translates at most, for `pairs` to train on.

    Example:
        >>> most_scored(300), most_scored(3000)
        (200, 300)
    """
    return max(FEWEST_SCORED, round(SCORED_SHARE * pairs))


class _Score(training.TranslationScore):
    """Translates with another model, which takes the weights of the trained one."""

    def __init__(self, translating: keras.Model, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._translating = translating

    def _translate(self, model):
        weights = self._translating.weights
        for weight, trained in zip(weights, model.weights, strict=True):
            weight.assign(trained)
        return super()._translate(self._translating)


class Corpus:
    """Sentences and their translations, tokenized for each size of vocabulary.

    One vocabulary serves both languages. `options`, of training, and
    `validation_options` are arguments of `text.translation_batches`.
    """

    def __init__(
        self,
        train: tuple[list[str], list[str]],
        validation: tuple[list[str], list[str]],
        options: dict[str, Any],
        validation_options: dict[str, Any],
        seed: int,
    ) -> None:
        self.train, self.validation = train, validation
        self._options = {**options, "seed": seed}
        self._validation_options = validation_options
        self.tokenizer = functools.cache(self._tokenizer)
        self.count_tokens = functools.cache(self._count_tokens)
        # With end tokens, which a mean over tokens includes.
        self.validation_tokens = functools.cache(
            lambda size: self._count_tokens(size, validation) + len(validation[1])
        )
        # The same in every epoch, unlike batches for training.
        self._validation_batches = functools.cache(
            lambda size: self._batches(
                self.validation, size, {**validation_options, "shuffle": False}
            )
        )

    def _tokenizer(self, vocabulary_size):
        """Trains the tokenizer of a size; the same lines give the same tokenizer."""
        from keras_seqattn.text import SentencePieceTokenizer

        lines = [*self.train[0], *self.train[1]]
        return SentencePieceTokenizer.train(lines, vocabulary_size)

    def pieces(self, vocabulary_size: int) -> list[str]:
        """Returns the pieces of the tokenizer of a size."""
        return self.tokenizer(vocabulary_size).pieces

    def _count_tokens(self, vocabulary_size, pairs=None):
        """Counts the target tokens without end tokens, for training by default."""
        _, targets = pairs or self.train
        return sum(map(len, self.tokenizer(vocabulary_size).tokenize(targets)))

    def _batches(self, lines, vocabulary_size, options):
        from keras_seqattn.text import translation_batches

        return translation_batches(*lines, self.tokenizer(vocabulary_size), **options)

    def batches(
        self, vocabulary_size: int, bidirectional_epochs: int = 0, copies: int = 1
    ) -> tuple[Dataset, Dataset]:
        """Returns a trial's batches for training, from epoch 0, and for validation.

        The first `bidirectional_epochs` epochs train both directions, and a batch has
        `copies` of each pair. Where the options ask for more of either, they decide.
        """
        given = {"bidirectional_epochs": bidirectional_epochs, "repeat_batch": copies}
        more = {name: max(n, self._options.get(name, n)) for name, n in given.items()}
        return (
            self._batches(self.train, vocabulary_size, self._options | more),
            self._validation_batches(vocabulary_size),
        )

    def score(
        self, vocabulary_size: int, translating: keras.Model
    ) -> keras.callbacks.Callback:
        """Returns a callback that logs BLEU and chrF of validation lines.

        The lines are the same for all trials, and at most `most_scored`. The model
        `translating` translates them, with the trial's weights.
        """
        lines = most_scored(len(self.train[0]))
        tokenizer = self.tokenizer(vocabulary_size)
        return _Score(translating, *self.validation, tokenizer, lines=lines)

    def fingerprint(self) -> str:
        """Returns a short hash of the sentences and the validation's options."""
        content = json.dumps([self.train, self.validation, self._validation_options])
        return hashlib.sha256(content.encode()).hexdigest()[:16]
