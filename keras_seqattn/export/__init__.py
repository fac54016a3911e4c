"""A translator for other runtimes: SavedModel, CTranslate2, ONNX.

`Translator.export` writes it, and names the formats and their options.

A SavedModel takes strings and returns strings. The program that loads it needs
TensorFlow and, where a tokenizer is SentencePiece, the import of tensorflow_text, which
registers what the tokenizer needs; without it TensorFlow knows no "SentencepieceOp".

```python
import tensorflow as tf
import tensorflow_text

serve = tf.saved_model.load("folder").signatures["serving_default"]
print(serve(lines=tf.constant(["two dogs"]))["translations"].numpy())
```

A folder for CTranslate2 holds no search: `ctranslate2.Translator.translate_batch` has
its own defaults. It finds the tokens of a `Translator` with these arguments. Its scores
are a little higher: the padding and start tokens are never generated, and the engine
leaves them out of the softmax, while the `Translator`'s scores are those of the model's
softmax over the whole vocabulary. The less a model gives to the two, the nearer they
are; where beams compete, a near tie may then be decided otherwise.

- `beam_size`, 2 by default: 1 for `Greedy()`, the `width` of a `BeamSearch`.
- `length_penalty`, 1 by default: the `length_penalty` of a `BeamSearch` whose `penalty`
  is "length"; 0 for `Greedy()`, whose scores it would divide too.
- `patience`, 1 by default: that of a `BeamSearch`. For its None, which searches on as
  long as a better hypothesis may come, the engine has no equal; a large number comes
  near.
- `min_decoding_length`, 1 by default, by which no translation is empty: the search's
  `min_length`, 0 if not set.
- `max_decoding_length`, 256 by default: 2 S + 10 for a line of S tokens, its end
  included, and at most the model's `max_length`. One call has one limit for all lines.
- `max_input_length`, 1024 by default: the translator's `max_source_length`.
- `repetition_penalty` and `no_repeat_ngram_size`: as in the search.
- `end_token`: with `stop_ids`, the texts of these and of the end token.

A tokenizer with `prefix_ids`, such as the language of a model of many, puts them before
a line: their pieces (`tokenizer.pieces`) are the caller's to add, to the source's
pieces, and as `target_prefix` where it is the target's. Nor does the folder hold the
`text_prefix` of a tokenizer, as T5's has it: put it before each line yourself.

Its sources are the pieces into which SentencePiece cuts a line by `source.spm`, without
an end token, which the engine adds by itself; `target.spm` joins what it returns. A
line that is empty has to be left out, and translates to "".
"""

from keras_seqattn.export.artifact import export_translator

__all__ = ["export_translator"]
