"""Search over any step function, or with a model, compiled as few programs.

`search` takes a step function; `generate` takes a model and many sentences. `Greedy`,
`Sample` and `BeamSearch` say how tokens are chosen.
"""

# What comes from `keras_seqattn.scheduling` is public here. That package imports the
# modules of this one, which import nothing from it.

from keras_seqattn.decoding.beam import BeamSearch
from keras_seqattn.decoding.ensemble import Ensemble
from keras_seqattn.decoding.hypotheses import Hypotheses
from keras_seqattn.decoding.loop import search
from keras_seqattn.decoding.methods import Greedy
from keras_seqattn.decoding.reranking import minimum_bayes_risk, rerank
from keras_seqattn.decoding.sampling import Sample
from keras_seqattn.scheduling.generation import generate
from keras_seqattn.scheduling.programs import CompileReport, compile_report, programs
from keras_seqattn.scheduling.scoring import scored

__all__ = [
    "BeamSearch",
    "CompileReport",
    "Ensemble",
    "Greedy",
    "Hypotheses",
    "Sample",
    "compile_report",
    "generate",
    "minimum_bayes_risk",
    "programs",
    "rerank",
    "scored",
    "search",
]
