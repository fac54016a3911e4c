"""The models and batches that every system trains: sizes, data, and what they cost."""

import argparse
import dataclasses

import numpy as np

from benchmarks import rounds

PAD_ID, START_ID, END_ID = 0, 1, 2


@dataclasses.dataclass(frozen=True)
class Shape:
    """An encoder-decoder Transformer with pre-norm blocks, and one padded batch.

    The source table, the target table and the output projection are `(V, D)` each, or
    one when `tied`, and the output has no bias. A last layer norm closes encoder and
    decoder.
    """

    name: str
    vocabulary_size: int
    model_dim: int
    intermediate_dim: int
    num_heads: int
    encoder_layers: int
    decoder_layers: int
    batch_size: int
    length: int
    min_length: int
    dropout: float = 0.1
    attention_dropout: float = 0.1
    tied: bool = False
    gradient_checkpointing: bool = False

    @property
    def positions(self):
        """Target positions of a step, padding included."""
        return self.batch_size * self.length

    @property
    def parameters(self):
        """Trainable parameters of the model, the same for every system."""
        width, hidden = self.model_dim, self.intermediate_dim
        norm = 2 * width
        attention = 4 * (width * width + width)
        feed_forward = 2 * width * hidden + hidden + width
        encoder_block = attention + feed_forward + 2 * norm
        decoder_block = 2 * attention + feed_forward + 3 * norm
        return (
            (1 if self.tied else 3) * self.vocabulary_size * width
            + self.encoder_layers * encoder_block
            + self.decoder_layers * decoder_block
            + 2 * norm
        )

    @property
    def flops(self):
        """Floating point operations of a training step on the padded batch.

        Counts only matrix products, with two operations a multiply-add, and the
        backward pass as two forward passes. A system that skips padding is credited
        with the whole.
        """
        width, length = self.model_dim, self.length
        attention = 8 * width**2 + 4 * length * width
        feed_forward = 4 * width * self.intermediate_dim
        position = (
            self.encoder_layers * (attention + feed_forward)
            + self.decoder_layers * (2 * attention + feed_forward)
            + 2 * width * self.vocabulary_size
        )
        return 3 * self.positions * position

    def check(self, system, parameters):
        """Raises ValueError if a system's parameter count differs from this."""
        if parameters != self.parameters:
            raise ValueError(
                f"`{system}` must have {self.parameters} parameters in {self.name}. "
                f"Received: parameters={parameters}."
            )


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("T1", 10_000, 128, 256, 4, 4, 4, batch_size=128, length=32, min_length=8),
        Shape("T2", 8_000, 256, 1024, 8, 3, 3, batch_size=32, length=64, min_length=16),
    )
}


def add_options(parser, systems):
    """Adds the options of a benchmark that trains shapes in rounds of some steps."""
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument(
        "--steps", type=rounds.count, default=10, help="steps in a measure"
    )
    rounds.add_options(parser)
    rounds.add_worker_options(parser, systems)
    parser.add_argument("--shape", choices=SHAPES, help=argparse.SUPPRESS)


def random_batches(shape, count=8):
    """Makes `count` batches of random sentences with random real lengths.

    Returns:
        Source ids, target ids and labels: int32 arrays `(count, B, L)`, padded with 0.
        The labels are the target ids shifted by one position.
    """
    random = np.random.default_rng(0)
    size = (count, shape.batch_size)
    source = _sentences(random, shape, size)
    sentence = _sentences(random, shape, size)
    start = np.full((*size, 1), START_ID, "int32")
    target = np.concatenate([start, sentence[..., :-1]], axis=-1)
    return source, np.where(sentence == PAD_ID, PAD_ID, target), sentence


def _sentences(random, shape, size):
    """Draws ids that end with the end token, then padding."""
    tokens = random.integers(
        END_ID + 1, shape.vocabulary_size, (*size, shape.length), dtype="int32"
    )
    lengths = random.integers(shape.min_length, shape.length + 1, (*size, 1))
    place = np.arange(shape.length)
    tokens = np.where(place == lengths - 1, END_ID, tokens)
    return np.where(place < lengths, tokens, PAD_ID).astype("int32")
