"""Shared by the examples that search: a translator's search with other beam widths."""

import dataclasses

import keras_seqattn as ks


def with_beams(search, width, num_hypotheses=1):
    """Returns a search with `width` beams that keeps the options which still apply.

    Args:
        search: A search of `keras_seqattn.decoding`, or None for a greedy one.
        width: Number of beams; 1: a greedy search.
        num_hypotheses: Number of translations for each line, if there are beams.

    Returns:
        A `Greedy` or a `BeamSearch`.
    """
    own = search or ks.decoding.Greedy()
    sizes = {"width": width, "num_hypotheses": num_hypotheses}
    if width > 1 and isinstance(own, ks.decoding.BeamSearch):
        # Groups must divide the beams; without them any width is valid.
        return dataclasses.replace(own, num_groups=1, **sizes)
    kinds = ks.decoding.Greedy, ks.decoding.BeamSearch
    names = [{field.name for field in dataclasses.fields(kind)} for kind in kinds]
    options = {name: getattr(own, name) for name in set.intersection(*names)}
    if width == 1:
        return ks.decoding.Greedy(**options)
    return ks.decoding.BeamSearch(**sizes, **options)
