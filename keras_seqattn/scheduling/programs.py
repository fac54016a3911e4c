"""The one cache of compiled programs: for a model's searches, streams and scores."""

import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from keras_seqattn import arguments
from keras_seqattn.backend import compile
from keras_seqattn.decoding.protocol import ByModel

# By model, then by function, options and variables: a `CompiledFunction`, which holds a
# program for each signature of its arguments, their shapes and dtypes.
_COMPILED = ByModel()
_MAKING = threading.Lock()


class CompileReport(NamedTuple):
    """What was compiled for a model's searches, streams and scores.

    Attributes:
        num_programs: Number of programs.
        seconds: Seconds that their first calls took, the run included.

    Example:
        >>> CompileReport(2, 3.5).num_programs
        2
    """

    num_programs: int
    seconds: float


def compiled(
    model: Any, function: Callable[..., Any], *options: Hashable, to_numpy: bool = False
) -> compile.CompiledFunction:
    """Returns `function(model, *options, *tensors)` compiled, from the cache if there.

    It is a function of the tensors, and compiles a program for each of their shapes.
    Unless `to_numpy`, results stay where they are, for another program to go on with.
    """
    # `quantize` and `enable_lora` replace variables, which requires new programs.
    variables = list(model.variables)
    ids = tuple(map(id, variables))
    key = (function, options, ids)
    with _MAKING:
        made = _COMPILED.setdefault(model, {})
        if key not in made:
            # A program keeps its variables in memory; replaced ones must be freed.
            for stale in [other for other in made if other[-1] != ids]:
                del made[stale]
            reference = weakref.ref(model)  # the cache must not keep the model alive
            made[key] = compile.CompiledFunction(
                lambda *tensors: function(reference(), *options, *tensors),
                variables,
                to_numpy,
            )
        return made[key]


def compile_report(model: Any) -> CompileReport:
    """Counts the programs that were compiled for a model.

    Args:
        model: The model.

    Returns:
        A `CompileReport`.

    Example:
        >>> compile_report(object.__new__(type("Model", (), {})))
        CompileReport(num_programs=0, seconds=0)
    """
    functions = programs(model)
    return CompileReport(
        sum(function.num_programs for function in functions),
        sum(function.compile_seconds for function in functions),
    )


def programs(model: Any) -> list[compile.CompiledFunction]:
    """Returns a model's compiled functions, each of one or more programs.

    Args:
        model: The model.

    Returns:
        A list of `CompiledFunction`, each with `num_programs` and `compile_seconds`.

    Example:
        >>> programs(object.__new__(type("Model", (), {})))
        []
    """
    arguments.offers("model", model, ("__dict__",), "a model")
    made = list(_COMPILED.get(model, {}).values())
    return [function for function in made if function.num_programs]
