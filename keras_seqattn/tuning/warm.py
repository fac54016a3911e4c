"""Weights of a smaller trial as the start of a larger one that computes the same.

A pre-norm block whose sublayers give 0 passes its input on; a head or a hidden unit
whose outgoing weights are 0 adds nothing. So a model grown from a smaller one, by
blocks, heads and hidden units that give 0 at first, computes exactly what the smaller
one does, and learns from there. These cannot grow: `model_dim`, `key_dim`, the
vocabulary, and all that changes the formula (positions, norm, activation, tying); the
depth of post-norm models, whose norms are not the identity; the depth of models that
share their layers; the number of heads with `alibi`, whose slopes depend on it, or with
keys and values shared by groups.
"""

import dataclasses
import re
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_seqattn.models import TranslationTransformer
from keras_seqattn.models.transformer import TranslationConfig
from keras_seqattn.tuning import records
from keras_seqattn.tuning.settings import Settings
from keras_seqattn.tuning.space import DROPPING

GROWING = ("encoder_layers", "decoder_layers", "num_heads", "intermediate_dim")
# The kernels that read the outputs of heads and hidden units.
_OUTGOING = re.compile(r"/(attention_output|output)/kernel$")


def can_grow(smaller: TranslationConfig, larger: TranslationConfig) -> bool:
    """Returns whether a model can start from the weights of a smaller or equal one."""
    free = {name: getattr(larger, name) for name in (*GROWING, *DROPPING)}
    if dataclasses.replace(smaller, **free) != larger:
        return False
    sizes = {name: (getattr(smaller, name), free[name]) for name in GROWING}
    if any(less > more for less, more in sizes.values()):
        return False
    grown = {name for name, (less, more) in sizes.items() if less != more}
    deeper = not grown.isdisjoint({"encoder_layers", "decoder_layers"})
    if deeper and (larger.share_layers or not larger.normalize_first):
        return False
    attention = [x or {} for x in (larger.attention, larger.decoder_attention)]
    by_heads = (
        larger.positions == "alibi"
        or larger.key_dim is None
        or any(x.get("positions") == "alibi" for x in attention)
        or any(x.get("num_key_value_heads") not in (None, 1) for x in attention)
    )
    return not ("num_heads" in grown and by_heads)


def grow(smaller: TranslationTransformer, larger: TranslationTransformer) -> None:
    """Copies a model's weights into one that can grow from it, to compute the same."""
    known = {place_of(weight): weight for weight in smaller.weights}
    for weight in larger.weights:
        place = place_of(weight)
        value = np.array(ops.convert_to_numpy(weight))
        if _OUTGOING.search(place):
            value = np.zeros_like(value)
        if place in known:
            old = ops.convert_to_numpy(known[place])
            value[tuple(map(slice, old.shape))] = old
        elif not place.startswith(("encoder_", "decoder_")):
            raise ValueError(
                "`larger` must have the layers of `smaller` and more blocks. "
                f"Received: larger with {place!r}, which `smaller` has not."
            )
        weight.assign(value)


def place_of(weight: Any) -> str:
    """Returns the place of a weight in its model, without the numbers Keras gives.

    Example:
        >>> import types
        >>> place_of(types.SimpleNamespace(path="encoder/encoder_0/norm_3/gamma"))
        'encoder_0/norm/gamma'
    """
    first, *rest = weight.path.split("/")
    if rest and rest[0].startswith(f"{first}_"):  # a stack's layers repeat its name
        first, *rest = rest
    return "/".join([first, *(re.sub(r"_\d+$", "", part) for part in rest)])


def start(model: keras.Model, record: records.TrialRecord, settings: Settings) -> None:
    """Starts a trial from the best of those that ended and can grow into it."""
    able = [
        other
        for other in records.load_records(settings.directory)
        if other.status in records.SCORED
        and can_grow(other.configuration.model, record.configuration.model)
    ]
    source = records.best_of(able, settings.objective.direction)
    if source is None:
        return
    grow(source.configuration.make_model(weights=source.best_weights), model)
    record.warm_started_from = source.trial_id
    # Also those before the first of its epochs, if its run has started warm itself.
    inherited = source.epochs[: source.inherited_epochs]
    before = source.inherited_seconds - sum(epoch["seconds"] for epoch in inherited)
    record.inherited_seconds = source.best_seconds + before
