"""The search for the hyperparameters that make a translation model best.

`tune_translation` does it all in one call that survives a kill. `TranslationSpace`,
`TranslationHyperModel` and `attention_choices` are pieces for any tuner of KerasTuner.
Only this package imports KerasTuner, which the extra `tuning` installs.
"""

from keras_seqattn.models.parameters import count_parameters
from keras_seqattn.recipes import Configuration
from keras_seqattn.tuning.hypermodels import TranslationHyperModel
from keras_seqattn.tuning.latency import decode_latency
from keras_seqattn.tuning.search import tune, tune_translation
from keras_seqattn.tuning.space import (
    AttentionChoices,
    Range,
    TranslationSpace,
    attention_choices,
)
from keras_seqattn.tuning.study import Study

__all__ = [
    "AttentionChoices",
    "Configuration",
    "Range",
    "Study",
    "TranslationHyperModel",
    "TranslationSpace",
    "attention_choices",
    "count_parameters",
    "decode_latency",
    "tune",
    "tune_translation",
]
