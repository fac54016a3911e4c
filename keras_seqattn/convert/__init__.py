"""Trained models in Hugging Face's format, as models and translators of this library.

`model_from_huggingface` reads encoder-decoders (Marian, M2M-100 and NLLB, mBART, T5 and
mT5) and Llama-shaped language models. `translator_from_huggingface` also reads the
tokenizers of the encoder-decoders. They read `config.json`, safetensors and
SentencePiece models, and never a pickle; token ids stay the same.
"""

from keras_seqattn.convert.model import model_from_huggingface
from keras_seqattn.convert.translators import translator_from_huggingface

__all__ = ["model_from_huggingface", "translator_from_huggingface"]
