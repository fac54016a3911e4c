"""`Ensemble`: several models decode as one, by the mean of their probabilities.

Shapes: B sentences, W beams, S source length, T target length, V vocabulary, M models.
"""

import math
from collections.abc import Sequence
from typing import Any, Self

import keras
from keras import ops

from keras_seqattn import arguments
from keras_seqattn.annotations import DecodingModel, Filters, State, Tensor, TokenIds
from keras_seqattn.decoding.processors import log_softmax
from keras_seqattn.decoding.protocol import (
    abilities,
    check_parts,
    initial_state,
    is_language_model,
    length_limit,
    max_new_tokens,
)

# Attributes that must be equal in all models that have them.
SHARED = (
    "start_id",
    "end_id",
    "pad_id",
    "source_vocabulary_size",
    "target_vocabulary_size",
    "vocabulary_size",
)


@keras.saving.register_keras_serializable(package="keras_seqattn")
class Ensemble(keras.Model):
    """Decodes with several models at once, by the mean of their probabilities.

    p(token) = (p_1(token) + ... + p_M(token)) / M, at each step and for each beam. The
    ensemble has the decoding protocol, so `generate`, a `Translator` and all searches
    take it as they take one model; all models run in one compiled program. Their
    architectures may differ, but not their vocabularies and special ids. An ensemble
    computes M times as much as one model. It supports an optional feature, such as
    continuous batching, only if all its models do.

    A saved ensemble holds its models, each once, and has no weights of its own.
    Shapes: B sentences, W beams, S source length, T target length, V vocabulary, M
    models.

    Args:
        models: List of M models with the decoding protocol. Only Keras models can be
            saved to a file. The same model may occur several times.
        **kwargs: `name`.

    Attributes:
        models: The models.
        max_length: The smallest of the models' limits, or None.

    Call arguments:
        inputs: What each of the models is called with.

    Returns:
        Float32 tensor `(B, T, V)`: log-probabilities.

    Raises:
        ValueError: If `models` is not a list of such models or is empty, if some are
            language models and others not, or if they differ in vocabulary size or in
            the id of start, end or padding.

    Example:
        >>> import numpy as np
        >>> from keras_seqattn.decoding import generate
        >>> from keras_seqattn.models import TranslationRNN, TranslationTransformer
        >>> transformer = TranslationTransformer(50, model_dim=8, intermediate_dim=8)
        >>> ensemble = Ensemble([transformer, TranslationRNN(50, model_dim=8)])
        >>> generate(ensemble, np.array([[5, 7, 2]]), max_length=4).token_ids.shape
        (1, 1, 4)

    Reference:
        Sutskever et al. 2014, section 3.6, who do not say what they average. fairseq
        takes the mean of the probabilities, as here; OpenNMT-py that of the
        log-probabilities, unless told otherwise.
    """

    def __init__(self, models: Sequence[DecodingModel], **kwargs: Any) -> None:
        arguments.known(kwargs, ("models", "name"), "Ensemble")
        models = _checked_models(models)
        super().__init__(**kwargs)
        self.models = models
        for name in SHARED:
            _check_equal(models, name)
            # By this one name alone would several models that translate, and have it,
            # count as a language model.
            if name == "vocabulary_size" and not is_language_model(models[0]):
                continue
            if all(hasattr(model, name) for model in models):
                setattr(self, name, getattr(models[0], name))
        limits = [length_limit(model) for model in models]
        self.max_length = min((x for x in limits if x is not None), default=None)
        self.built = True  # It has no weights of its own.

    @property
    def abilities(self) -> frozenset[str]:
        """Which optional parts of the protocol all models have."""
        return frozenset.intersection(*map(abilities, self.models))

    @property
    def variables(self) -> list[Any]:
        """The variables of all models, even of those that are not Keras models."""
        return [*super().variables, *self._plain_variables()]

    @property
    def weights(self) -> list[Any]:
        """The weights of all models: the variables of one that is no Keras model."""
        return [*super().weights, *self._plain_variables()]

    def _plain_variables(self) -> list[Any]:
        plain = [x for x in self.models if not isinstance(x, keras.Layer)]
        return [variable for model in plain for variable in model.variables]

    def call(self, inputs: Any) -> Tensor:
        """Computes the log of the models' mean probabilities of whole targets."""
        return self._mean([model(inputs) for model in self.models])

    def encode(self, source_ids: TokenIds) -> State:
        """Encodes source sentences with each model.

        Args:
            source_ids: Int32 tensor `(B, S)`.

        Returns:
            A dict from each model's number, "0", "1", ..., to its memory.
        """
        sources = self._sources(source_ids)
        return {
            str(i): model.encode(ids)
            for i, (model, ids) in enumerate(zip(self.models, sources, strict=True))
        }

    def initial_state(
        self, memory: State, max_length: int, width: int = 1, coverage: bool = False
    ) -> State:
        """Makes the state before the first decoding step.

        Args:
            memory: What `encode` returned.
            max_length: Number of steps that the state has memory for.
            width: Number of beams W per sentence.
            coverage: Whether the steps sum the attention that each source position
                gets, averaged over the models.

        Returns:
            A dict with the parts of the models' states, "beam", "sentence" and
            "shared": each is a dict from a model's number to that model's part.
        """
        states = [
            initial_state(model, memory[str(i)], max_length, width, coverage)
            for i, model in enumerate(self.models)
        ]
        return _join_states(states, coverage)

    def grow_state(self, state: State, max_length: int, index: int | Tensor) -> State:
        """Makes room in a state for more steps.

        Args:
            state: What `initial_state` or `step` returned.
            max_length: Number of steps that the new state has memory for.
            index: Number of steps taken, an integer or a scalar int32 tensor.

        Returns:
            A state like that of `initial_state`.
        """
        states = [
            model.grow_state(own, max_length, index)
            for model, own in zip(self.models, self._split(state), strict=True)
        ]
        return _join_states(states, "coverage" in state.get("beam", {}))

    def step(
        self,
        token_ids: TokenIds,
        state: State,
        index: int | Tensor,
        start: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """Decodes one position with each model.

        Args:
            token_ids: Int32 tensor `(B, W)`, the token at `index` of each beam.
            state: What `initial_state` or the step before returned.
            index: The step, a scalar int32 tensor; 0 for the start token.
            start: Int32 tensor `(B,)`, the step at which each sentence began; None: 0
                for all.

        Returns:
            Float32 log-probabilities `(B, W, V)` of the next token, and the new state.
        """
        began = {} if start is None else {"start": start}
        stepped = [
            model.step(token_ids, own, index, **began)
            for model, own in zip(self.models, self._split(state), strict=True)
        ]
        logits, states = zip(*stepped, strict=True)
        after = _join_states(states, "coverage" in state.get("beam", {}))
        return self._mean(logits), after

    def most_generated(self, source_length: int) -> int | None:
        """Returns the largest number of tokens that all models can generate.

        Args:
            source_length: Number of tokens of the source.

        Returns:
            An integer, or None for no limit.
        """
        arguments.integer("source_length", source_length, 0)
        limits = [max_new_tokens(model, source_length) for model in self.models]
        return min((x for x in limits if x is not None), default=None)

    def quantize(
        self,
        mode: str | None = None,
        config: Any = None,
        filters: Filters | None = None,
        **kwargs: Any,
    ) -> None:
        """Quantizes each model that is a Keras model as its own `quantize` does.

        Args:
            mode: As in `keras.Model.quantize`; so are the other arguments.
            config: A `keras.quantizers.QuantizationConfig`, or None.
            filters: Which layers to quantize, by their names or a function; None for
                all.
            **kwargs: `type_check`.
        """
        for model in {id(model): model for model in single_models(self)}.values():
            if isinstance(model, keras.Model):
                model.quantize(mode, config=config, filters=filters, **kwargs)
        self.train_function = self.test_function = self.predict_function = None

    def _sources(self, source_ids: Tensor) -> list[Tensor]:
        """Returns the source that each model reads."""
        return [source_ids] * len(self.models)

    def _split(self, state: State) -> list[State]:
        """Splits a state into those of the models."""
        return [
            {part: state[part][key] for part in state if key in state[part]}
            for key in map(str, range(len(self.models)))
        ]

    def _mean(self, logits: Sequence[Tensor]) -> Tensor:
        """Computes the log of the mean of several softmaxes `(..., V)`, in float32."""
        sizes = [x.shape[-1] for x in logits]
        if len(set(sizes)) > 1:
            raise ValueError(
                "`models` must have logits of one vocabulary. "
                f"Received: models with logits of {sizes} tokens."
            )
        total = ops.logsumexp(ops.stack([log_softmax(x) for x in logits]), axis=0)
        return total - math.log(len(logits))

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments, the models as configurations."""
        models = [arguments.configuration(model) for model in self.models]
        for model in models:
            model.pop("compile_config", None)
        return {"name": self.name, "models": models}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Makes the ensemble from its configuration."""
        models = map(keras.saving.deserialize_keras_object, config["models"])
        return cls(**{**config, "models": list(models)})


def single_models(model: DecodingModel) -> list[DecodingModel]:
    """Lists the models of an ensemble, also of one within it; else the model alone."""
    if not isinstance(model, Ensemble):
        return [model]
    return [single for part in model.models for single in single_models(part)]


def _checked_models(models: Any) -> list[DecodingModel]:
    """Returns models as a list if each has the decoding protocol."""
    wanted = "a list of models with the decoding protocol, at least one"
    models = list(arguments.sequence("models", models, wanted))
    if not models:
        arguments.refuse("models", models, wanted)
    for number, model in enumerate(models):
        try:
            check_parts(model)
        except ValueError as error:
            raise ValueError(
                f"`models` must be {wanted}. Received: models[{number}]={model!r}. "
                f"{error}"
            ) from error
    kinds = list(map(is_language_model, models))
    if any(kinds) and not all(kinds):
        raise ValueError(
            "`models` must all be language models, or none: the others would translate "
            "what these continue. Received: a language model at "
            f"models[{kinds.index(True)}], none at models[{kinds.index(False)}]."
        )
    return models


def _check_equal(models: list[DecodingModel], name: str) -> None:
    """Raises an error where models differ in an attribute that they have."""
    values = {
        number: getattr(model, name)
        for number, model in enumerate(models)
        if hasattr(model, name)
    }
    if len(set(values.values())) > 1:
        received = ", ".join(f"models[{i}].{name}={x!r}" for i, x in values.items())
        raise ValueError(f"`models` must have one `{name}`. Received: {received}.")


def _join_states(states: Sequence[State], coverage: bool) -> State:
    """Joins the models' states into a dict, by part and then by model number.

    For a search with `coverage` it adds what belongs to no single model: the mean
    attention received, and the mask of the source.
    """
    parts = dict.fromkeys(part for state in states for part in state)
    joined = {
        part: {str(i): state[part] for i, state in enumerate(states) if part in state}
        for part in parts
    }
    # `check_model` says what a model's state lacks.
    beams = [state.get("beam", {}) for state in states]
    if coverage and all("coverage" in beam for beam in beams):
        received = [beam["coverage"] for beam in beams]
        joined["beam"]["coverage"] = ops.mean(ops.stack(received), axis=0)
    sentence = states[0].get("sentence", {})
    if coverage and "mask" in sentence:
        joined["sentence"]["mask"] = sentence["mask"]
    return joined
