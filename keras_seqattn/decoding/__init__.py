"""Search over any step function: exact, and compiled as one program."""

from keras_seqattn.decoding.search import (
    Greedy,
    Hypotheses,
    generate,
    programs,
    search,
)

__all__ = ["Greedy", "Hypotheses", "generate", "programs", "search"]
