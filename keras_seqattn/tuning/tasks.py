"""What a study trains: translation models on a corpus, or models of one's own.

A task knows its models, their data, and what tells it from other tasks. The study
around it chooses hyperparameters, spends time and keeps records.
"""

import dataclasses
import functools
import hashlib
import io
import json
import pickle
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import keras
import keras_tuner
import numpy as np

from keras_seqattn import arguments
from keras_seqattn.backend.parts import layers_of
from keras_seqattn.models.config import Config, option, optional_size
from keras_seqattn.recipes import RECIPES, Configuration, Recipe
from keras_seqattn.training.variables import parts_of
from keras_seqattn.tuning.corpus import Corpus
from keras_seqattn.tuning.hypermodels import TranslationHyperModel
from keras_seqattn.tuning.objective import DECODED, MONITORS, OF_TOKENS, score_of
from keras_seqattn.tuning.records import TrialRecord
from keras_seqattn.tuning.space import DROPPING, TranslationSpace, choices_of

OWN = "own"  # marks a user's own `build` in a study's file
FACTOR = 1.0  # of consistency, for a run that overfits
SHAPES = 4  # of models that stay compiled for translation

# The number of a trial is added, and NumPy takes seeds of 32 bits.
checked_seed = functools.partial(arguments.integer, least=0, most=2**31 - 1)
_space = functools.partial(
    arguments.instance, types=TranslationSpace, wanted="a `TranslationSpace`"
)


def _lengths(name: str, value: Any) -> Any:
    return None if value is None else Recipe.checks()["bucket_lengths"](name, value)


def _dataset(name: str, given: Any, wanted: str) -> Any:
    """Returns a dataset, which each epoch can iterate anew, unlike a generator."""
    is_other = isinstance(given, str | dict)
    if is_other or hasattr(given, "__next__") or hasattr(given, "shape"):
        arguments.refuse(name, given, wanted)
    return arguments.offers(name, given, ("__iter__",), wanted)


def _lines_or_batches(name: str, given: Any) -> Any:
    """Returns a pair of lists of strings, or a dataset as it is."""
    if not isinstance(given, tuple | list):
        return _dataset(name, given, "a dataset, or a pair of lists of strings")
    sides = [arguments.listed(side) for side in given]
    if len(sides) != 2 or not all(isinstance(side, list | tuple) for side in sides):
        raise ValueError(
            f"`{name}` must be a dataset, or a pair of lists of strings, sources and "
            f"targets. Received: {name}={given!r:.80}."
        )
    sources, targets = (
        list(arguments.strings(f"{name}[{number}]", side))
        for number, side in enumerate(sides)
    )
    if not sources or len(sources) != len(targets):
        raise ValueError(
            f"`{name}` must hold as many sources as targets, at least one. Received: "
            f"{len(sources)} sources, {len(targets)} targets."
        )
    return sources, targets


def _arrays_or_batches(name: str, given: Any) -> Any:
    """Returns a tuple of inputs, labels and perhaps weights, or a dataset as it is."""
    wanted = "a dataset, or a tuple of inputs, labels and perhaps their weights"
    if not isinstance(given, tuple | list):
        return _dataset(name, given, wanted)
    if len(given) not in (2, 3):
        arguments.refuse(name, given, wanted)
    shapes = map(np.shape, keras.tree.flatten(list(given)))
    counts = [shape[0] for shape in shapes if shape]
    if 0 in counts or len(set(counts)) > 1:
        raise ValueError(
            f"`{name}` must hold as many labels as inputs, at least one. Received: "
            f"arrays of {', '.join(map(str, counts))} samples."
        )
    return tuple(given)


def _builder(name: str, build: Any) -> Any:
    """Returns a KerasTuner hypermodel, or a function that makes a model, as it is."""
    # A model can be called too, but not with `hp`.
    is_function = callable(build) and not isinstance(build, keras.Layer)
    if not isinstance(build, keras_tuner.HyperModel) and not is_function:
        wanted = "a function of `hp`, or a KerasTuner `HyperModel`"
        arguments.refuse(name, build, wanted)
    return build


class _Pickler(pickle.Pickler):
    """Pickles only what another program can import, nothing of the program itself."""

    def reducer_override(self, value: Any) -> Any:
        """Refuses what the program that runs has defined."""
        if getattr(value, "__module__", None) == "__main__":
            raise pickle.PicklingError(f"{value!r:.80} is of `__main__`")
        return NotImplemented


def _digest(data: Any) -> str | None:
    """Returns a short hash of arrays; None where some of the data are not arrays."""
    digest = hashlib.sha256()
    for array in keras.tree.flatten(data):
        if not isinstance(array, np.ndarray) or array.dtype.hasobject:
            return None
        digest.update(f"{array.shape} {array.dtype}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()[:16]


def shape_of(configuration: Configuration) -> Configuration:
    """Returns what a configuration's translations depend on, except the weights.

    This leaves out dropout and how the model is trained: trials of one shape translate
    with the same programs, in the same time.
    """
    options = configuration.model.options()
    dropping = dict.fromkeys(set(DROPPING) & set(options), 0.0)
    model = dataclasses.replace(configuration.model, **dropping)
    architecture, dtype = configuration.architecture, configuration.dtype
    return Configuration(model, 1.0, 1, architecture=architecture, dtype=dtype)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task(Config):
    """What all tasks have in common, translation and a user's own models.

    A subclass has the data as options, and these members:

    - `check(objective, workers)` raises an error for what cannot be recorded or shared;
    - `prepare` does too, for data that suit no trial: it takes longer;
    - `identity` tells the task from others, and is kept in `study.json`;
    - `hypermodel` makes and fits the models;
    - `configuration(hp)` declares the space on `hp` and returns what it has chosen, or
      None where only a built model can tell;
    - `fit_arguments`, `callbacks` and `score` are a trial's data, callbacks and score;
    - `epoch_tokens` is how long its epoch is, in a unit that all trials share;
    - `monitors` are the logged scores that stand for objectives;
    - `bidirectional` and `consistency` are what a run that overfits gets: see `Plan`.
    """

    def __getstate__(self) -> dict[str, Any]:
        """Returns what is sent to workers: the options, not what was made of them."""
        return self.options()

    def prepare(self) -> None:
        """Makes what new trials share, if they share any."""

    def make_model(self, hp: keras_tuner.HyperParameters) -> keras.Model:
        """Makes the compiled and built model of hyperparameters."""
        return self.hypermodel.build(hp)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TranslationTask(Task):
    """Translation models on a corpus: the arguments of `tune_translation`."""

    train: Any = option(_lines_or_batches)
    validation: Any = option(_lines_or_batches)
    space: TranslationSpace = option(_space)
    vocabulary_size: int | None = option(optional_size)
    target_vocabulary_size: int | None = option(optional_size)
    batch_tokens: int | None = option(optional_size)
    bucket_lengths: tuple[int, ...] | None = option(_lengths)
    seed: int = option(checked_seed)
    # The logged scores that stand for objectives which are not scores themselves.
    monitors: ClassVar[Mapping[str, str]] = MONITORS

    def __post_init__(self) -> None:
        """Checks the options."""
        super().__post_init__()
        sizes = self.space.vocabulary_size, self.vocabulary_size
        if sizes == (None, None) and isinstance(self.train, tuple):
            size = self.space.center.vocabulary_size
            object.__setattr__(self, "vocabulary_size", size)

    def check(self, objective: str, workers: int) -> None:
        """Raises an error if the task cannot be recorded, scored or shared as asked."""
        try:
            json.dumps([self.space.options, dataclasses.asdict(self.space.center)])
        except TypeError as error:
            raise ValueError(
                "`space` must have `options` and a `center` that JSON can hold, as the "
                "records of a study do: names in place of functions and layers. "
                f"Received: {error}."
            ) from error
        if workers > 1 and type(self.space).__module__ == "__main__":
            raise ValueError(
                "`space` must be of a class that the workers can import: put it in a "
                f"module. Received: space of {type(self.space)!r}."
            )
        if isinstance(self.train, tuple) != isinstance(self.validation, tuple):
            raise ValueError(
                "`validation` must be lists of strings where `train` is, and a dataset "
                f"where that is one. Received: validation={self.validation!r:.80}, "
                f"train={self.train!r:.80}."
            )
        sizes = self.space.vocabulary_size
        asked = objective in DECODED or workers > 1 or sizes is not None
        if self.corpus is None and asked:
            raise ValueError(
                "`train` must be lists of strings for an objective that is decoded, "
                "for several workers, or for a space with sizes of vocabularies. "
                f"Received: a dataset, with objective={objective!r}, "
                f"workers={workers!r}, space.vocabulary_size={sizes!r}."
            )
        if self.vocabulary_size is None and sizes is None:
            arguments.refuse("vocabulary_size", None, "given for a dataset")
        if self.corpus is not None and self.target_vocabulary_size is not None:
            size = self.vocabulary_size, self.target_vocabulary_size
            wanted = "one integer for lists of strings, which share a tokenizer"
            arguments.refuse("vocabulary_size", size, wanted)
        if self.corpus is not None:
            self._check_batch_tokens()
        # Raises an error if no model can have the values that the search begins with.
        self.configuration(self.hyperparameters).count_parameters()

    def prepare(self) -> None:
        """Makes the tokenizer and batches of each size, or raises the error of one."""
        sizes = self.space.vocabulary_size or self.vocabulary_size
        for size in choices_of(sizes) if self.corpus is not None else ():
            self.corpus.batches(size)

    def _check_batch_tokens(self):
        """Refuses batches too small for one pair, on which every trial would fail."""
        sizes = {**self._recipe.batch_options(), **self._batch_options}
        copies = max(sizes["repeat_batch"], 2 if self.space.center.consistency else 1)
        least = sizes["bucket_lengths"][-1] * copies
        if sizes["batch_tokens"] < least:
            wanted = f"at least {least}, to hold a pair of the longest bucket"
            arguments.refuse("batch_tokens", sizes["batch_tokens"], wanted)

    @property
    def identity(self) -> dict[str, Any]:
        """What tells it from other tasks, in values that JSON keeps."""
        center = self.space.center
        optimizer = self.space.optimizer
        asked = {
            "vocabulary_size": self.vocabulary_size,
            "target_vocabulary_size": self.target_vocabulary_size,
            "space": repr(self.space),
            "optimizer": None if optimizer is None else repr(optimizer),
            "center": None if center == RECIPES["own"] else repr(center),
        }
        if self.corpus is None:
            return {**asked, "corpus": "batches"}
        lengths = list(self._batch_options["bucket_lengths"])
        options = {**self._batch_options, "bucket_lengths": lengths}
        # Last: it depends on the options too, and `Settings.claim` names the first.
        return {**asked, **options, "corpus": self.corpus.fingerprint()}

    @functools.cached_property
    def hyperparameters(self) -> keras_tuner.HyperParameters:
        """The space, with its defaults."""
        hp = keras_tuner.HyperParameters()
        self.configuration(hp)  # which declares them
        return hp

    @functools.cached_property
    def hypermodel(self) -> TranslationHyperModel:
        """The hypermodel that makes the models."""
        has_views = self.corpus is not None and self._recipe.views is not None
        return TranslationHyperModel(
            self.vocabulary_size,
            self.target_vocabulary_size,
            self.space,
            pieces=self.corpus.pieces if has_views else None,
        )

    @functools.cached_property
    def corpus(self) -> Corpus | None:
        """The `Corpus` of lists of strings; None for datasets."""
        if not isinstance(self.train, tuple):
            return None
        return Corpus(
            self.train,
            self.validation,
            {**self._recipe.batch_options(), **self._batch_options},
            self._batch_options,
            seed=self.seed,
        )

    @property
    def _recipe(self):
        center = self.space.center
        return center if isinstance(center, Recipe) else RECIPES["own"]

    @property
    def _batch_options(self):
        """Returns the options of batches, those of the center where none are given."""
        options = self._recipe.batch_options(training=False)
        given = {name: getattr(self, name) for name in options}
        return options | {name: x for name, x in given.items() if x is not None}

    def configuration(self, hp: keras_tuner.HyperParameters) -> Configuration:
        """Returns the `Configuration` that hyperparameters stand for."""
        return self.hypermodel.configuration(hp)

    def epoch_tokens(self, record: TrialRecord) -> float:
        """Returns the target tokens of an epoch; 1 unless vocabularies differ."""
        if self.space.vocabulary_size is None:
            return 1.0
        return self.corpus.count_tokens(record.configuration.vocabulary_size)

    def score(self, name: str, logs: dict[str, float], record: TrialRecord) -> float:
        """Returns an epoch's score, comparable where vocabularies differ.

        Then a mean over tokens becomes one over as many tokens as the center's
        vocabulary makes of the validation text.
        """
        score = score_of(name, logs)
        if self.space.vocabulary_size is None or name not in OF_TOKENS:
            return score
        center = self.configuration(self.hyperparameters).vocabulary_size
        tokens = self.corpus.validation_tokens
        share = tokens(record.configuration.vocabulary_size) / tokens(center)
        return score**share if name == "val_perplexity" else score * share

    @property
    def bidirectional(self) -> bool:
        """Whether the data can also be learnt in the other direction."""
        return self.corpus is not None

    @property
    def consistency(self) -> float:
        """The factor of consistency for a run that overfits.

        0 for datasets, where the center has copies or a factor of its own, where no
        dropout would make two copies differ, or where a batch has no room for them.
        """
        recipe = self._recipe
        has_copies = recipe.repeat_batch > 1 or recipe.views is not None
        if self.corpus is None or self.space.center.consistency or has_copies:
            return 0.0
        center, space = self.space.center.model.options(), self.space
        options = {**center, "dropout": space.dropout, **space.options}
        if not any(any(choices_of(options[name])) for name in DROPPING):
            return 0.0
        sizes = self._batch_options
        has_room = sizes["batch_tokens"] >= 2 * sizes["bucket_lengths"][-1]
        return FACTOR if has_room else 0.0

    def fit_arguments(self, model: keras.Model, record: TrialRecord) -> dict[str, Any]:
        """Returns the data as arguments of `fit`; the batches come shuffled."""
        train, validation = self.train, self.validation
        if self.corpus is not None:
            train, validation = self.corpus.batches(
                model.source_vocabulary_size,
                record.bidirectional_epochs,
                copies=2 if record.consistency else 1,
            )
        return {"x": train, "validation_data": validation, "shuffle": False}

    def callbacks(
        self, model: keras.Model, record: TrialRecord, objective: str
    ) -> list[keras.callbacks.Callback]:
        """Returns callbacks that average a trial's weights, and then score them."""
        made = record.configuration.average_callbacks()
        if objective in DECODED:
            shape = json.dumps(dataclasses.asdict(shape_of(record.configuration)))
            translating = self._translating(shape)
            made.append(self.corpus.score(model.source_vocabulary_size, translating))
        return made

    @functools.cached_property
    def _translating(self):
        """Makes the model that translates for all trials of a shape, given in JSON.

        Compiling a model's search takes as long as two epochs of a small corpus.
        """
        make = functools.lru_cache(SHAPES)
        return make(lambda shape: Configuration(**json.loads(shape)).make_model())


@dataclasses.dataclass(frozen=True, kw_only=True)
class CustomTask(Task):
    """Models of a user's own `build(hp)`: the arguments of `tune`."""

    build: Callable[..., Any] = option(_builder)
    train: Any = option(_arrays_or_batches)
    validation: Any = option(_arrays_or_batches)
    batch_size: int | None = option(optional_size)
    monitors: ClassVar[Mapping[str, str]] = {}
    bidirectional: ClassVar[bool] = False
    consistency: ClassVar[float] = 0.0

    def check(self, objective: str, workers: int) -> None:
        """Raises an error if the task cannot be shared among workers."""
        if workers == 1:
            return
        try:
            _Pickler(io.BytesIO()).dump(self)
        except Exception as error:  # A dataset of TensorFlow raises one of its own.
            raise ValueError(
                "`build` must be what the workers can import, and `train` and "
                "`validation` what they can be sent: put `build` in a module. "
                f"Received: build={self.build!r}, workers={workers!r}; "
                f"{type(error).__name__}: {error}."
            ) from error

    @property
    def identity(self) -> dict[str, Any]:
        """What tells it from other tasks, in values that JSON keeps."""
        hp = keras_tuner.HyperParameters()
        model = self.make_model(hp)  # with the defaults
        space = repr(hp.get_config()["space"])
        known = {"task": OWN, "space": space, "batch_size": self.batch_size or 32}
        # Not the configurations of layers, which hold seeds, and what Keras adds.
        weights = [(*weight.shape, str(weight.dtype)) for weight in model.weights]
        build = repr((type(model).__name__, weights))
        known["build"] = hashlib.sha256(build.encode()).hexdigest()[:16]
        # Last. It is None for datasets, and early versions did not write it.
        return known | {"data": _digest((self.train, self.validation))}

    @functools.cached_property
    def hypermodel(self) -> keras_tuner.HyperModel:
        """The hypermodel that makes the models."""
        if isinstance(self.build, keras_tuner.HyperModel):
            return self.build
        made = keras_tuner.HyperModel()
        made.build = self.build
        return made

    def make_model(self, hp: keras_tuner.HyperParameters) -> keras.Model:
        """Makes the compiled model of hyperparameters, and builds all its layers."""
        model = self.hypermodel.build(hp)
        if not isinstance(model, keras.Model) or not model.compiled:
            raise ValueError(
                "`build` must return a compiled `keras.Model`. Received: a `build` "
                f"that returned {model!r}."
            )
        if not all(layer.built for layer in layers_of(model)):
            model(self._sample)
        return model

    @functools.cached_property
    def _sample(self):
        """The inputs of the first sample to train on, as a batch of one."""
        batch = self.train
        if not isinstance(batch, tuple):
            batch = next(iter(batch))
        inputs, *_ = keras.utils.unpack_x_y_sample_weight(batch)
        return keras.tree.map_structure(
            lambda array: keras.ops.convert_to_numpy(array[:1]), inputs
        )

    def configuration(self, hp: keras_tuner.HyperParameters) -> None:
        """Returns None: only a built model shows what hyperparameters stand for."""

    def epoch_tokens(self, record: TrialRecord) -> float:
        """Returns how long an epoch is: the same for all trials."""
        return 1.0

    def score(self, name: str, logs: dict[str, float], record: TrialRecord) -> float:
        """Returns an epoch's score."""
        return score_of(name, logs)

    def fit_arguments(self, model: keras.Model, record: TrialRecord) -> dict[str, Any]:
        """Returns the data as arguments of `fit`."""
        names, given = ("x", "y", "sample_weight"), self.train
        given = given if isinstance(given, tuple) else (given,)
        data = dict(zip(names, given, strict=False))
        sizes = {} if self.batch_size is None else {"batch_size": self.batch_size}
        # Keras shuffles arrays and the batches of a `PyDataset`, and would warn that it
        # cannot shuffle anything else. A `fit` of the user's own may say so itself.
        shuffled = isinstance(self.train, tuple | keras.utils.PyDataset)
        is_own = type(self.hypermodel).fit is not keras_tuner.HyperModel.fit
        order = {} if shuffled or is_own else {"shuffle": False}
        return {**data, **sizes, **order, "validation_data": self.validation}

    def callbacks(
        self, model: keras.Model, record: TrialRecord, objective: str
    ) -> list[keras.callbacks.Callback]:
        """Returns the callback of averaged weights, if the optimizer averages them."""
        # A model with a `train_step` of its own may be compiled without an optimizer.
        parts = parts_of(model.optimizer)
        use_ema = any(getattr(part, "use_ema", False) for part in parts)
        return [keras.callbacks.SwapEMAWeights()] if use_ema else []
