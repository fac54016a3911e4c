"""`TranslationHyperModel`, an ordinary KerasTuner hypermodel of translation."""

import dataclasses
from collections.abc import Callable, Sequence

import keras_tuner

from keras_seqattn import arguments
from keras_seqattn.models import TranslationTransformer
from keras_seqattn.models.config import optional_size
from keras_seqattn.recipes import Configuration
from keras_seqattn.tuning.records import CONSISTENCY
from keras_seqattn.tuning.space import TranslationSpace


class TranslationHyperModel(keras_tuner.HyperModel):
    """Builds compiled translation models for any KerasTuner tuner.

    Its space can be explored without building anything, and every combination can be
    built. With a tuner of KerasTuner's own, take the objective
    `keras_tuner.Objective("val_token_crossentropy", "min")`: `val_loss` contains each
    trial's label smoothing, and so does not compare trials.

    Args:
        vocabulary_size: Entries of the source's vocabulary, or of the one both share;
            None where the space has sizes to choose among.
        target_vocabulary_size: Entries of the target's; None where it is shared.
        space: A `TranslationSpace`; None: its defaults.
        pieces: Function of a vocabulary's size that returns the tokenizer's `pieces`,
            where the copies of a pair may be segmented differently; see
            `MaskedCrossentropy`. None: they are not.

    Example:
        >>> import keras_tuner
        >>> space = TranslationSpace(model_dim=8, num_heads=(1, 2), key_dim=4)
        >>> hypermodel = TranslationHyperModel(50, space=space)
        >>> model = hypermodel.build(keras_tuner.HyperParameters())
        >>> model.target_vocabulary_size
        50
    """

    def __init__(
        self,
        vocabulary_size: int | None = None,
        target_vocabulary_size: int | None = None,
        space: TranslationSpace | None = None,
        pieces: Callable[[int], Sequence[str]] | None = None,
    ) -> None:
        optional_size("vocabulary_size", vocabulary_size)
        optional_size("target_vocabulary_size", target_vocabulary_size)
        arguments.instance(
            "space", space, TranslationSpace, "a `TranslationSpace`", True
        )
        super().__init__()
        self.vocabulary_size = vocabulary_size
        self.target_vocabulary_size = target_vocabulary_size
        self.space: TranslationSpace = space or TranslationSpace()
        self.pieces = arguments.function("pieces", pieces, optional=True)

    def configuration(self, hp: keras_tuner.HyperParameters) -> Configuration:
        """Returns what the hyperparameters stand for, and builds nothing.

        Args:
            hp: KerasTuner's `HyperParameters`. What it lacks of the space is declared
                on it.

        Returns:
            A `Configuration`.
        """
        sizes = self.vocabulary_size, self.target_vocabulary_size
        made = self.space.choose(hp, *sizes)
        # Only a study adds one that is not the center's: see `halving`.
        consistency = hp.values.get(CONSISTENCY, made.consistency)
        return dataclasses.replace(made, consistency=consistency)

    def declare_hyperparameters(self, hp: keras_tuner.HyperParameters) -> None:
        """Declares the whole space, including inactive scopes."""
        self.configuration(hp)

    def build(self, hp: keras_tuner.HyperParameters) -> TranslationTransformer:
        """Makes the compiled model."""
        configuration = self.configuration(hp)
        size, pieces = configuration.vocabulary_size, self.pieces
        return configuration.make_model(pieces=pieces and pieces(size))
