"""`Sample`: each token is drawn from the model's probabilities.

Shapes: B sentences, W samples of each.
"""

import dataclasses
import random

import keras
from keras import ops

from keras_seqattn import arguments
from keras_seqattn.annotations import Tensor
from keras_seqattn.decoding import processors
from keras_seqattn.decoding.methods import Greedy, GreedyState


@keras.saving.register_keras_serializable(package="keras_seqattn")
@dataclasses.dataclass(frozen=True)
class Sample(Greedy):
    """Draws each token from the model's probabilities.

    The filters apply in the order temperature, `top_k`, `top_p`, `min_p`, each to what
    the one before left. The same seed gives the same samples on every backend. The
    samples of a sentence do not depend on the sentences searched beside it.

    The W samples of a sentence share one reading of the source or the prompt, and one
    cache of their tokens, over which each sample attends: this part of a step grows
    with W * W. For many long samples, pass the sentence W times, with
    `num_hypotheses=1`, which reads it W times.

    Args:
        temperature: Number of at least 1e-6 by which logits are divided; a value below
            1 favours probable tokens.
        top_k: Number of the most probable tokens that may be drawn, or None.
        top_p: Probability in (0, 1], or None: only the most probable tokens that
            together reach it may be drawn.
        min_p: Probability in (0, 1] relative to the most probable token's, below which
            no token is drawn, or None.
        seed: Integer of at least 0, taken modulo 2**31; None draws another seed for
            each search, which `keras.utils.set_random_seed` makes repeatable.
        num_hypotheses: Number of samples drawn for each sentence.
        min_length: Number of tokens before the end token may come, at least 0.
        repetition_penalty: Positive number by which the log-probability of tokens
            already generated is multiplied; 1 for no penalty.
        no_repeat_ngram: Length of the token sequences that no hypothesis may contain
            twice; 0 for no limit.
        banned_ids: Token ids that are never generated.
        biased_ids: Dict of token ids to the number of nats, in [-1e5, 1e5], added to
            their log-probabilities when a token is chosen; scores stay the model's own.
        stop_ids: Token ids that end a hypothesis as the end token does.
        scored: Whether to compute scores, which order the samples of a sentence. If
            False, they are NaN, and each step saves a pass over the vocabulary.

    Raises:
        ValueError: If an argument is out of its range, or, once it searches, if a token
            id is not in the model's vocabulary.

    Example:
        >>> Sample(temperature=0.7, top_k=10, seed=1).top_k
        10

    Reference:
        `top_k`: Fan et al. 2018, "Hierarchical Neural Story Generation". `top_p`:
        Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration". `min_p`:
        Nguyen et al. 2024, "Turning Up the Heat: Min-p Sampling".
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    num_hypotheses: int = 1

    def __post_init__(self) -> None:
        """Checks the arguments."""
        super().__post_init__()
        # In float32 a quotient by a much smaller number may be infinite.
        arguments.number("temperature", self.temperature, least=1e-6)
        arguments.positive_integer("top_k", self.top_k, optional=True)
        for name in ("top_p", "min_p"):
            given = getattr(self, name)
            arguments.number(name, given, above=0.0, most=1.0, optional=True)
        arguments.integer("seed", self.seed, 0, optional=True)
        arguments.positive_integer("num_hypotheses", self.num_hypotheses)

    def draw_seed(self) -> int:
        """Returns the seed of one search."""
        return random.randrange(2**31) if self.seed is None else self.seed % 2**31

    def choose(
        self, log_probs: Tensor, state: GreedyState, index: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Draws each beam's token; returns values and int32 tokens, both `(B, W)`."""
        allowed = processors.is_allowed(log_probs)
        log_probs = ops.log_softmax(log_probs / self.temperature)
        if self.top_k is not None:
            log_probs = processors.keep_top_k(log_probs, self.top_k)
            log_probs = ops.log_softmax(log_probs)
        if self.top_p is not None:
            log_probs = processors.keep_top_p(log_probs, self.top_p)
        if self.min_p is not None:
            log_probs = processors.keep_min_p(log_probs, self.min_p)
        # Dividing and normalizing raise the values of forbidden tokens; if all are
        # forbidden, they would become as probable as allowed ones.
        log_probs = ops.where(allowed, log_probs, processors.FORBIDDEN)
        noise = processors.gumbel_noise(state.seeds, index, log_probs.shape[-1])
        return super().choose(log_probs + noise, state, index)
