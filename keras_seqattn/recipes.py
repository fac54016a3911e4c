"""Presets a user can read: every number of a training, under one name.

`RECIPES["default"]` is a `Recipe`; `dataclasses.replace(recipe, epochs=3)` varies it.
"""

import dataclasses

from keras_seqattn import models


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The hyperparameters of one training.

    Attributes:
        corpus: Name of the corpus that the numbers were chosen on.
        vocabulary_size: Entries of the one vocabulary of both languages.
        model: Arguments of the architecture, beside the vocabulary's size.
        batch_tokens: Most tokens in a batch, padding included.
        bucket_lengths: Lengths in tokens that batches are padded to; a longer pair is
            left out of training.
        peak_learning_rate: Highest rate of `InverseSquareRoot`.
        warmup_steps: Steps in which the rate rises to its peak.
        label_smoothing: Probability taken from the true token and spread over all.
        ema_momentum: Share of the running average of the weights kept at a step. The
            average is what is validated, saved and used.
        epochs: Passes over the training pairs.
        architecture: Name of a model of `keras_seqattn.models` that translates.

    Example:
    >>> RECIPES["multi30k"].model["encoder_layers"]
    4
    """

    corpus: str
    vocabulary_size: int
    model: dict
    batch_tokens: int
    bucket_lengths: tuple[int, ...]
    peak_learning_rate: float
    warmup_steps: int
    label_smoothing: float
    ema_momentum: float
    epochs: int
    architecture: str = "TranslationTransformer"

    def make_model(self, vocabulary_size=None):
        """Makes the model that is to be trained.

        Args:
            vocabulary_size: Entries that the tokenizer has; the recipe's when None.

        Returns:
            A Keras model.
        """
        make = getattr(models, self.architecture)
        return make(vocabulary_size or self.vocabulary_size, **self.model)


RECIPES = {
    # Shows that everything runs: under a minute in all on two cores, and no more.
    "smoke": Recipe(
        corpus="phrases",
        vocabulary_size=1000,
        model={
            "model_dim": 64,
            "num_heads": 4,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "intermediate_dim": 128,
            "dropout": 0.0,
        },
        batch_tokens=1024,
        bucket_lengths=(8, 12, 16, 32),
        peak_learning_rate=0.005,
        warmup_steps=50,
        label_smoothing=0.0,
        ema_momentum=0.95,
        epochs=1,
    ),
    # About five minutes on two cores.
    "default": Recipe(
        corpus="phrases",
        # Small, so that numbers are spelt by digits rather than known by heart.
        vocabulary_size=1000,
        model={
            "model_dim": 128,
            "num_heads": 4,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "intermediate_dim": 256,
            "dropout": 0.1,
        },
        batch_tokens=2048,
        bucket_lengths=(8, 12, 16, 32),
        peak_learning_rate=0.004,
        warmup_steps=400,
        label_smoothing=0.1,
        ema_momentum=0.99,
        epochs=10,
    ),
    # At most 45 minutes on two cores. The shape is that of Wu et al. 2021, "Good for
    # Misconceived Reasons", who found larger ones worse on this corpus.
    "multi30k": Recipe(
        corpus="multi30k",
        # Half of theirs: half the cost of the logits, and pieces seen more often.
        vocabulary_size=5000,
        model={
            "model_dim": 128,
            "num_heads": 4,
            "encoder_layers": 4,
            "decoder_layers": 4,
            "intermediate_dim": 256,
            # Less than their 0.3, which takes several times as many epochs to pay.
            "dropout": 0.15,
        },
        # Half of what is usual: in this time twice the steps are worth their noise.
        batch_tokens=2048,
        # Tight, so that little of a batch is padding: captions have 18 tokens or so.
        bucket_lengths=(11, 13, 15, 17, 19, 21, 24, 28, 36, 64),
        peak_learning_rate=0.0035,
        warmup_steps=500,
        label_smoothing=0.1,
        # A mean over about 1,000 steps, some four epochs.
        ema_momentum=0.999,
        epochs=30,
    ),
}
# Lines of one's own: those of `default` are short.
RECIPES["own"] = dataclasses.replace(
    RECIPES["default"], corpus="own", bucket_lengths=(12, 16, 24, 32, 48, 64, 128)
)


def _recurrent(recipe, model_dim):
    """Returns a recipe's recurrent counterpart: `model_dim` for as many weights."""
    return dataclasses.replace(
        recipe,
        architecture="TranslationRNN",
        model={"model_dim": model_dim, "dropout": recipe.model["dropout"]},
        peak_learning_rate=0.003,
    )


RECIPES["gru-smoke"] = _recurrent(RECIPES["smoke"], 58)
RECIPES["gru-default"] = _recurrent(RECIPES["default"], 156)
RECIPES["gru-multi30k"] = _recurrent(RECIPES["multi30k"], 192)
