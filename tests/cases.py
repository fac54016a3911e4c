"""At least one working example of every public class, for tests that take them all.

A case is (a function that makes the thing, the arrays it is then used with).
"""

import functools

import keras
import numpy as np

from keras_seqattn import decoding, layers, models, text, training

V, D = 11, 8
IDS = np.array([[5, 3, 2, 0], [4, 2, 0, 0]], "int32")
_rng = np.random.default_rng(0)
X = _rng.normal(size=(2, 4, D)).astype("float32")
Y = _rng.normal(size=(2, 5, D)).astype("float32")
HEADS = _rng.normal(size=(2, 4, 2, D)).astype("float32")
GRID = _rng.normal(size=(2, 4, 3, D)).astype("float32")
LOGITS = _rng.normal(size=(2, 4, V)).astype("float32")
LINES = np.array(["A red shirt.", " un  café ", ""])


def case(cls, *arguments, inputs, **options):
    """Returns how to make a thing, and the arrays to use it with."""
    return functools.partial(cls, *arguments, **options), inputs


def _every_attention_option():
    return {
        "value_dim": 3,
        "dropout": 0.1,
        "use_bias": False,
        "output_shape": (3, 2),
        "attention_axes": (2,),
        "sliding_window": 2,
        "kernel_initializer": "he_normal",
        "bias_initializer": "ones",
        "kernel_regularizer": "l2",
        "bias_regularizer": "l1",
        "activity_regularizer": "l2",
        "kernel_constraint": "non_neg",
        "bias_constraint": "unit_norm",
        "use_gate": True,
        "seed": 3,
        "num_key_value_heads": 2,
        "score": "scaled_dot",
        "scale": 0.5,
        "positions": "rotary",
        "qk_norm": True,
        "implementation": "explicit",
        "name": "all_options",
    }


def _tokenizer():
    lines = ["a man in a blue shirt", "a woman in a red shirt"] * 30
    return text.SentencePieceTokenizer.train(lines, vocabulary_size=290)


def _mapped_tokenizer():
    tokenizer = _tokenizer()
    pieces = tokenizer.pieces[::-1]  # padding last
    special = {"pad_id": 289, "start_id": 289, "end_id": 287, "unknown_id": 286}
    return text.MappedSentencePieceTokenizer(
        tokenizer._model, pieces, **special, special_ids=[288]
    )


_small_rnn = functools.partial(
    case, models.TranslationRNN, V, model_dim=D, inputs=(IDS, IDS)
)
_stack = {"model_dim": D, "num_heads": 2, "num_layers": 2, "intermediate_dim": 12}
_small = functools.partial(
    case,
    models.TranslationTransformer,
    V,
    model_dim=D,
    num_heads=2,
    encoder_layers=1,
    decoder_layers=1,
    intermediate_dim=12,
    inputs=(IDS, IDS),
)

CASES = {
    "layers.ScaledDotProductAttention": [
        case(layers.ScaledDotProductAttention, inputs=(X, Y)),
        case(
            layers.ScaledDotProductAttention,
            scale=1.0,
            dropout=0.2,
            implementation="explicit",
            seed=1,
            inputs=(HEADS, HEADS),
        ),
    ],
    "layers.AdditiveAttention": [
        case(layers.AdditiveAttention, 6, inputs=(X, Y)),
        case(
            layers.AdditiveAttention,
            6,
            dropout=0.2,
            use_bias=True,
            seed=1,
            inputs=(HEADS, HEADS),
        ),
    ],
    "layers.MultiHeadAttention": [
        case(layers.MultiHeadAttention, 2, 4, inputs=(X, Y)),
        case(
            layers.MultiHeadAttention,
            4,
            4,
            inputs=(GRID, GRID),
            **_every_attention_option(),
        ),
        case(layers.MultiHeadAttention, 2, 4, flash_attention=True, inputs=(X, Y, Y)),
        (
            lambda: layers.MultiHeadAttention(
                4,
                3,
                num_key_value_heads=2,
                score="additive",
                positions=layers.RelativeBias(8, 5, bidirectional=False),
            ),
            (X, Y),
        ),
        case(
            layers.MultiHeadAttention,
            3,
            4,
            score="dot",
            positions="alibi",
            inputs=(X, X),
        ),
    ],
    "layers.RotaryPositions": [
        case(layers.RotaryPositions, inputs=(HEADS,)),
        case(layers.RotaryPositions, base=100.0, scaling=2.0, inputs=(HEADS,)),
        case(layers.RotaryPositions, sequence_axis=2, feature_axis=3, inputs=(HEADS,)),
        case(
            layers.RotaryPositions,
            llama3_scaling={
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 3.0,
                "original_max_position_embeddings": 32,
            },
            inputs=(HEADS,),
        ),
    ],
    "layers.RelativeBias": [
        case(layers.RelativeBias, inputs=(HEADS, HEADS)),
        case(
            layers.RelativeBias,
            num_buckets=5,
            max_distance=7,
            bidirectional=False,
            initializer="ones",
            inputs=(HEADS,),
        ),
    ],
    "layers.AlibiBias": [
        case(layers.AlibiBias, inputs=(HEADS, HEADS)),
        case(layers.AlibiBias, alibi_bias_max=4.0, inputs=(HEADS,)),
    ],
    "layers.SinusoidalPositions": [
        case(layers.SinusoidalPositions, inputs=(X,)),
        case(
            layers.SinusoidalPositions,
            base=100.0,
            cosine_exponent="odd",
            inputs=(X,),
        ),
    ],
    "layers.LearnedPositions": [case(layers.LearnedPositions, 6, inputs=(X,))],
    "layers.PositionalEmbedding": [
        case(layers.PositionalEmbedding, V, D, inputs=(IDS,)),
        case(
            layers.PositionalEmbedding,
            V,
            D,
            positions="learned",
            max_length=5,
            dropout=0.1,
            mask_zero=False,
            inputs=(IDS,),
        ),
        (
            lambda: layers.PositionalEmbedding(
                V, D, positions=layers.SinusoidalPositions(base=100.0)
            ),
            (IDS,),
        ),
        case(layers.PositionalEmbedding, V, D, positions=None, inputs=(IDS,)),
    ],
    "layers.TokenLogits": [case(layers.TokenLogits, V, inputs=(X,))],
    "layers.FeedForward": [
        case(layers.FeedForward, 12, inputs=(X,)),
        case(
            layers.FeedForward,
            12,
            activation="silu",
            gated=True,
            dropout=0.1,
            kernel_initializer="he_normal",
            bias_initializer="ones",
            inputs=(X,),
        ),
    ],
    "layers.RecurrentCell": [
        (
            lambda: keras.layers.RNN(
                layers.RecurrentCell(5, activation="relu"), return_sequences=True
            ),
            (X,),
        ),
    ],
    "layers.RecurrentEncoder": [
        case(layers.RecurrentEncoder, 5, inputs=(X,)),
        case(
            layers.RecurrentEncoder,
            5,
            num_layers=2,
            cell="simple",
            bidirectional=False,
            dropout=0.1,
            inputs=(X,),
        ),
    ],
    "layers.AttentiveRecurrentDecoder": [
        case(layers.AttentiveRecurrentDecoder, 5, inputs=(X, Y, Y[:, 0])),
        case(
            layers.AttentiveRecurrentDecoder,
            5,
            num_layers=2,
            cell="simple",
            attention_units=3,
            dropout=0.1,
            inputs=(X, Y, Y[:, 0]),
        ),
    ],
    "layers.Residual": [
        (lambda: layers.Residual(layers.FeedForward(12)), (X,)),
        (
            lambda: layers.Residual(
                keras.layers.Dense(D), norm="rms", normalize_first=False, epsilon=0.1
            ),
            (X,),
        ),
    ],
    "layers.EncoderBlock": [
        case(layers.EncoderBlock, 2, 12, inputs=(X,)),
        case(
            layers.EncoderBlock,
            2,
            12,
            key_dim=3,
            dropout=0.1,
            attention_dropout=0.2,
            activation="gelu",
            gated=True,
            norm="rms",
            normalize_first=False,
            attention={"num_key_value_heads": 1, "sliding_window": 2},
            activation_dropout=0.1,
            stochastic_depth=0.2,
            kernel_initializer="he_normal",
            bias_initializer="ones",
            epsilon=1e-3,
            inputs=(X,),
        ),
        (
            lambda: layers.EncoderBlock(
                2, 12, attention=layers.MultiHeadAttention(3, 5, use_gate=True)
            ),
            (X,),
        ),
    ],
    "layers.DecoderBlock": [
        case(layers.DecoderBlock, 2, 12, inputs=(X, Y)),
        case(layers.DecoderBlock, 2, 12, norm="rms", inputs=(X,)),
        (
            lambda: layers.DecoderBlock(
                2,
                12,
                attention={"use_gate": True},
                cross_attention=layers.MultiHeadAttention(3, 5),
            ),
            (X, Y),
        ),
        (
            lambda: layers.DecoderBlock(
                2, 12, attention={"positions": layers.RelativeBias(num_buckets=8)}
            ),
            (X,),
        ),
    ],
    "layers.TransformerStack": [
        (
            lambda: layers.TransformerStack([layers.EncoderBlock(2, 12)], unpad=False),
            (X,),
        ),
        (
            lambda: layers.TransformerStack(
                2 * [layers.DecoderBlock(2, 12)],
                norm=keras.layers.LayerNormalization(),
            ),
            (X, Y),
        ),
    ],
    # All is padding, which leaves the memory as it was: what is saved after a use gives
    # what the use gave.
    "layers.SegmentMemory": [
        case(layers.SegmentMemory, 3, 2, inputs=(X, np.zeros((2, 4), bool)))
    ],
    "models.TranslationRNN": [
        _small_rnn(),
        _small_rnn(
            target_vocabulary_size=V + 2,
            encoder_layers=2,
            decoder_layers=2,
            dropout=0.2,
            tie_embeddings=False,
            cell="simple",
            attention_units=5,
            max_length=6,
            start_id=3,
            end_id=4,
            zero_id=5,
            name="all_options",
        ),
    ],
    "models.TranslationTransformer": [
        _small(),
        _small(
            target_vocabulary_size=V + 2,
            positions="learned",
            max_length=6,
            tie_embeddings=False,
            normalize_first=False,
            norm="rms",
            gated=True,
            activation="silu",
            key_dim=3,
            attention_dropout=0.1,
            attention={"num_key_value_heads": 1},
            start_id=3,
            end_id=4,
            activation_dropout=0.1,
            stochastic_depth=0.2,
            zero_id=5,
            name="all_options",
        ),
        _small(positions="rotary", decoder_layers=2, share_layers=True),
    ],
    "models.LanguageModel": [
        case(models.LanguageModel, V, **_stack, memory_length=3, inputs=(IDS,)),
        (
            lambda: models.LanguageModel(
                V,
                **_stack,
                positions=None,
                attention={"positions": layers.RelativeBias(num_buckets=8)},
                share_layers=True,
                stochastic_depth=0.2,
            ),
            (IDS,),
        ),
        case(
            models.LanguageModel,
            V,
            **_stack,
            positions="learned",
            max_length=6,
            tie_embeddings=False,
            normalize_first=False,
            start_id=3,
            inputs=(IDS,),
        ),
    ],
    "models.EncoderModel": [
        case(models.EncoderModel, V, **_stack, inputs=(IDS,)),
        case(
            models.EncoderModel,
            V,
            num_classes=3,
            **_stack,
            pooling="first",
            positions="alibi",
            share_layers=True,
            inputs=(IDS,),
        ),
        case(
            models.EncoderModel,
            V,
            num_classes=3,
            **_stack,
            tie_embeddings=False,
            pad_id=3,
            inputs=(IDS,),
        ),
    ],
    "decoding.Greedy": [
        case(decoding.Greedy, inputs=(LOGITS,)),
        case(
            decoding.Greedy,
            min_length=1,
            repetition_penalty=1.5,
            no_repeat_ngram=2,
            banned_ids=(4,),
            stop_ids=(5, 6),
            scored=False,
            inputs=(LOGITS,),
        ),
    ],
    "decoding.Sample": [
        case(
            decoding.Sample,
            temperature=0.9,
            top_k=5,
            top_p=0.9,
            min_p=0.1,
            seed=3,
            num_hypotheses=2,
            inputs=(LOGITS,),
        )
    ],
    "decoding.BeamSearch": [
        case(
            decoding.BeamSearch,
            width=3,
            length_penalty=0.6,
            penalty="gnmt",
            num_hypotheses=2,
            num_groups=3,
            diversity_penalty=0.7,
            banned_ids=(4,),
            biased_ids={3: 1.5},
            stop_ids=(5, 6),
            inputs=(LOGITS,),
        )
    ],
    "decoding.Ensemble": [
        (
            lambda: decoding.Ensemble(
                [
                    models.TranslationRNN(V, model_dim=D),
                    CASES["models.TranslationTransformer"][0][0](),
                ]
            ),
            (IDS, IDS),
        )
    ],
    "training.MaskedCrossentropy": [
        case(training.MaskedCrossentropy, inputs=(IDS, LOGITS)),
        case(
            training.MaskedCrossentropy,
            label_smoothing=0.1,
            consistency=0.5,
            normalize_by=7.0,
            pad_id=2,
            name="smoothed",
            pieces=[str(token) for token in range(V)],
            inputs=(IDS, LOGITS),
        ),
    ],
    "training.TokenCrossentropy": [
        case(training.TokenCrossentropy, pad_id=2, inputs=(IDS, LOGITS))
    ],
    "training.Perplexity": [
        case(training.Perplexity, name="ppl", inputs=(IDS, LOGITS))
    ],
    "training.MaskedAccuracy": [case(training.MaskedAccuracy, inputs=(IDS, LOGITS))],
    "training.Adam": [
        case(training.Adam, 0.01, beta_2=0.98, name="ours", inputs=(X, X)),
        case(training.Adam, 0.01, True, use_ema=True, inputs=(X, X)),
    ],
    "training.Muon": [
        case(training.Muon, 0.01, adam_beta_2=0.98, name="ours", inputs=(X, X)),
        case(training.Muon, 0.01, ema_warmup=True, use_ema=True, inputs=(X, X)),
    ],
    "training.InverseSquareRoot": [
        case(training.InverseSquareRoot, 0.01, 100, inputs=(np.array(250),))
    ],
    "training.Noam": [
        case(training.Noam, 512, 4000, scale=2.0, inputs=(np.array(250),))
    ],
    "text.SentencePieceTokenizer": [(_tokenizer, (LINES,))],
    "text.MappedSentencePieceTokenizer": [(_mapped_tokenizer, (LINES,))],
    "text.WordPieceTokenizer": [
        case(
            text.WordPieceTokenizer,
            ["<pad>", "<s>", "</s>", "<unk>", "a", "b", "##b", "##a"],
            inputs=(LINES,),
        )
    ],
    "text.ByteTokenizer": [case(text.ByteTokenizer, inputs=(LINES,))],
}
# Public classes without a case, since they are neither configured nor saved: results,
# lines of files of one machine, and callbacks, for which Keras has no configuration.
UNCONFIGURED = {
    "layers.DistanceBias",
    "decoding.Hypotheses",
    "decoding.CompileReport",
    "text.TextLines",
    "training.CheckpointAverage",
    "training.Resume",
    "training.ScheduleFreeAverage",
    "training.TerminateOnDivergence",
    "training.TranslationScore",
}
