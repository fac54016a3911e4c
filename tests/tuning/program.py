"""A study of a minute on real models, as a program that can be killed.

    python -m tests.tuning.program FOLDER OPTIONS

OPTIONS is a JSON object of further arguments of `tune_translation`.
"""

import json
import sys

from keras_seqattn import tuning

SPACE = {
    "model_dim": 8,
    "encoder_layers": (1, 2),
    "decoder_layers": 1,
    "num_heads": (1, 2),
    "key_dim": (4, 8),
    "feed_forward_ratio": 1,
    "warmup_steps": 10,
    "post_norm_warmup_steps": 20,
    "positions": "sinusoidal",
}


def lines(numbers):
    return [f"{i} red dogs" for i in numbers], [f"{i} rote Hunde" for i in numbers]


def study(folder, space=None, **options):
    given = {
        "algorithm": "random",
        "epochs": 2,
        "vocabulary_size": 290,
        "batch_tokens": 256,
        "bucket_lengths": (16,),
        "verbose": False,
    } | options
    return tuning.tune_translation(
        lines(range(32)),
        lines(range(32, 40)),
        directory=folder,
        space=tuning.TranslationSpace(**SPACE | (space or {})),
        **given,
    )


if __name__ == "__main__":
    study(sys.argv[1], **json.loads(sys.argv[2]))
