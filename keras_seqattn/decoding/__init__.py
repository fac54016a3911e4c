"""Search over any step function: exact, and compiled as few programs."""

from keras_seqattn.decoding.beam import BeamSearch
from keras_seqattn.decoding.generation import generate
from keras_seqattn.decoding.hypotheses import Hypotheses
from keras_seqattn.decoding.methods import Greedy, Sample
from keras_seqattn.decoding.program import CompileReport, compile_report, programs
from keras_seqattn.decoding.scoring import scored
from keras_seqattn.decoding.search import search

__all__ = [
    "BeamSearch",
    "CompileReport",
    "Greedy",
    "Hypotheses",
    "Sample",
    "compile_report",
    "generate",
    "programs",
    "scored",
    "search",
]
