"""The errors of arguments, and the names that a function takes."""

import difflib
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, NoReturn

# Names of arguments in PyTorch, Hugging Face, KerasHub and Keras's examples, and ours.
ELSEWHERE = {
    "beam_size": "width",
    "d_ff": "intermediate_dim",
    "d_model": "model_dim",
    "embed_dim": "model_dim",
    "embedding_dim": "model_dim",
    "hidden_dim": "model_dim",
    "hidden_size": "model_dim",
    "dim_feedforward": "intermediate_dim",
    "ff_dim": "intermediate_dim",
    "ffn_dim": "intermediate_dim",
    "intermediate_size": "intermediate_dim",
    "nhead": "num_heads",
    "num_attention_heads": "num_heads",
    "num_beams": "width",
    "num_decoder_layers": "decoder_layers",
    "num_encoder_layers": "encoder_layers",
    "num_hidden_layers": "num_layers",
    "num_labels": "num_classes",
    "num_return_sequences": "num_hypotheses",
    "rate": "dropout",
    "norm_first": "normalize_first",
    "max_position_embeddings": "max_length",
    "sequence_length": "max_length",
}
MOST_SHOWN = 1000  # characters of a value; a search with all its options has 300


def refuse(name: str, value: Any, wanted: str, optional: bool = False) -> NoReturn:
    """Raises the `ValueError` for an argument that is not what it must be.

    Example:
        >>> refuse("width", 0, "a positive integer")
        Traceback (most recent call last):
        ValueError: `width` must be a positive integer. Received: width=0.
    """
    wanted += " or None" if optional else ""
    raise ValueError(f"`{name}` must be {wanted}. Received: {name}={shown(value)}.")


def shown(value: Any) -> str:
    """Returns how an error shows a value: of a whole corpus, only how it begins.

    Example:
        >>> shown([0] * 1000)[-8:]
        '0, 0 ...'
    """
    text = repr(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN].rstrip(', ')} ..."


def known(
    given: Mapping[str, Any],
    names: Sequence[str],
    owner: str,
    of_call: Sequence[str] = (),
) -> None:
    """Raises an error, with the nearest name, if `owner` does not know an argument.

    `given` is a dict of keyword arguments. `of_call` are the names that a call of what
    `owner` makes would know.
    """
    for name, value in given.items():
        if name not in names:
            if name in of_call:
                raise ValueError(
                    f"`{name}` must be given when the layer is called, not to "
                    f"`{owner}`. Received: {name}={shown(value)}."
                )
            nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
            if ELSEWHERE.get(name) in names:
                nearest = [ELSEWHERE[name]]
            hint = f" Did you mean `{nearest[0]}`?" if nearest else ""
            raise ValueError(
                f"`{name}` must be an argument of `{owner}`. "
                f"Received: {name}={shown(value)}.{hint}"
            )


def names_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """Returns the names of the arguments of a function, or of a class's constructor."""
    return tuple(
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    )


def package(name: str, extra: str, user: str = "This") -> ModuleType:
    """Imports a package of an extra, or says in an error how to install it.

    `user` is what needs the package, in words that begin the error.

    Example:
        >>> package("json", "text").dumps(1)
        '1'
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(
            f"{user} needs the package {name}: "
            f'pip install ".[{extra}]" in a clone of the repository.'
        ) from error
