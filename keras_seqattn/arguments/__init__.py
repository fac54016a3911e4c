"""Checks of public arguments, in one wording for the whole library.

Every check takes the name of an argument and the value that the caller passed. It
returns the value as plain Python (NumPy's numbers become Python's, so that
configurations are JSON), or raises a `ValueError` that names the argument, what it must
be (`wanted`, with its article) and what it was. A bool is never a number. With
`optional=True` None is allowed.
"""

from keras_seqattn.arguments.checked import (
    Checked,
    check_flag,
    check_unseen_mask,
    of_added_mask,
)
from keras_seqattn.arguments.errors import (
    known,
    names_of,
    package,
    refuse,
    shown,
)
from keras_seqattn.arguments.objects import (
    choice,
    configuration,
    function,
    increasing,
    instance,
    interpreted,
    is_unicode,
    keras_object,
    listed,
    offers,
    ordered,
    path,
    sequence,
    strings,
    tensor,
    text,
)
from keras_seqattn.arguments.scalars import (
    boolean,
    fraction,
    index,
    integer,
    may_be,
    may_broadcast,
    number,
    positive_integer,
    scalar,
    seed,
)

__all__ = [
    "Checked",
    "boolean",
    "check_flag",
    "check_unseen_mask",
    "choice",
    "configuration",
    "fraction",
    "function",
    "increasing",
    "index",
    "instance",
    "integer",
    "interpreted",
    "is_unicode",
    "keras_object",
    "known",
    "listed",
    "may_be",
    "may_broadcast",
    "names_of",
    "number",
    "offers",
    "of_added_mask",
    "ordered",
    "package",
    "path",
    "positive_integer",
    "refuse",
    "scalar",
    "seed",
    "sequence",
    "shown",
    "strings",
    "tensor",
    "text",
]
