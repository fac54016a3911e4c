"""A translator for other runtimes: SavedModel, CTranslate2, ONNX.

`Translator.export` writes it, and names the formats and their options.

A SavedModel takes strings and returns strings. The program that loads it needs
TensorFlow. If a tokenizer is SentencePiece, it also has to import tensorflow_text,
which registers what the tokenizer needs; otherwise TensorFlow does not know
"SentencepieceOp".

```python
import tensorflow as tf
import tensorflow_text

serve = tf.saved_model.load("folder").signatures["serving_default"]
print(serve(lines=tf.constant(["two dogs"]))["translations"].numpy())
```

`serve` also returns `scores`. If the search finds several hypotheses, the signature
`n_best` returns all of them, with outputs `(lines, hypotheses)`. Each tokenizer must be
a `SentencePieceTokenizer` or a `ByteTokenizer`.

A folder for CTranslate2 holds no search: `ctranslate2.Translator.translate_batch` has
its own defaults. With the arguments below it searches as a `Translator` does, but its
scores are a little higher. The engine leaves tokens that may not be generated out of
the softmax: padding and start, the end before `min_decoding_length`, and what would
repeat an n-gram. The `Translator`'s scores come from the model's softmax over the whole
vocabulary. The less probability a model gives to those tokens, the closer the scores
are. A greedy search chooses the same tokens; where beams compete, the difference may
decide.

- `beam_size`, 2 by default: 1 for `Greedy()`, the `width` of a `BeamSearch`.
- `length_penalty`, 1 by default: the `length_penalty` of a `BeamSearch` whose `penalty`
  is "length"; 0 for `Greedy()`, because the engine would also divide its scores. The
  engine also counts the tokens of a `target_prefix`.
- `patience`, 1 by default: that of a `BeamSearch`. The engine has no equivalent of
  None, which searches as long as a better hypothesis may come; a large number comes
  near. The engine rounds `patience * beam_size`, a `BeamSearch` takes the next integer
  up.
- `min_decoding_length`, 1 by default, so that no translation is empty: the search's
  `min_length`, 0 if not set.
- `max_decoding_length`, 256 by default: 2 S + 10 for a line of S tokens, its end
  included, and at most the model's `max_length`. One call has one limit for all lines.
- `max_input_length`, 1024 by default: the translator's `max_source_length`.
- `no_repeat_ngram_size`: the search's `no_repeat_ngram`.
- `repetition_penalty` has no exact equivalent: the engine changes logits, before the
  softmax, and a search log-probabilities.
- `end_token`: with `stop_ids`, the texts of these and of the end token.

A tokenizer with `prefix_ids`, such as the language for a multilingual model, puts them
before each line. The folder does not: add their pieces (`tokenizer.pieces`) yourself,
to the source's pieces, or as `target_prefix` if the tokenizer is the target's. The
hypotheses then begin with them: `hypotheses[0][len(prefix):]` is without. It does not
hold a tokenizer's `text_prefix` either, such as T5's: put it before each line.

The engine's sources are the pieces into which SentencePiece cuts a line by
`source.spm`, without an end token, which the engine adds by itself; `target.spm` joins
what it returns. Take the breaks off the ends of lines first, and leave out lines that
are empty or only whitespace, whose translation is "". A tokenizer may also be a
`MappedSentencePieceTokenizer`. If it has pieces that `target.spm` lacks, their U+2581
stays in a joined text: replace it by a space. For a `ByteTokenizer` there is no such
file: the piece of byte b is `f"<0x{b:02X}>"`.

An ONNX file holds the model alone. It maps int32 `source_ids` `(batch, source_length)`
and `target_ids` `(batch, target_length)`, whose first token is the start token, to
float32 `logits` `(batch, target_length, vocabulary)`. Its metadata holds `start_id`,
`end_id` and `pad_id`.
"""

from keras_seqattn.export.artifact import export_translator

__all__ = ["export_translator"]
