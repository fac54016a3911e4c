"""The layers and seed generators within a layer; Keras lists only those of models."""

from collections.abc import Iterable
from typing import Any

import keras


def layers_of(layer: keras.Layer) -> list[keras.Layer]:
    """Lists a layer and the layers in its attributes, at any depth.

    Each is listed once, `layer` first. A `keras.Sequential` also contains the
    functional model that Keras makes from it.
    """
    return [part for part in _parts(layer) if isinstance(part, keras.Layer)]


def seed_generators_of(layer: keras.Layer) -> list[keras.random.SeedGenerator]:
    """Lists the seed generators of a layer and of its parts, each once."""
    generator = keras.random.SeedGenerator
    return [part for part in _parts(layer) if isinstance(part, generator)]


def track_list(layer: keras.Layer, name: str, parts: Iterable[keras.Layer]) -> None:
    """Lets `tf.train.Checkpoint` find the layers of a list, which it would skip."""
    if keras.backend.backend() == "tensorflow":
        for number, part in enumerate(parts):
            # Sorts after `name`, by which a `.keras` file knows the layer.
            setattr(layer, f"{name}_{number}", part)


def build_part(part: keras.Layer, *shapes: Any) -> None:
    """Builds a part for inputs of some shapes, unless it is built.

    A layer without a `build` of its own may hold layers that are built as they are
    called. It is called for that: Keras's `build` leaves them without weights, also
    where it loads the layer.
    """
    has_own = type(part).build is not keras.Layer.build
    if not has_own and not all(inner.built for inner in layers_of(part)[1:]):
        part(*(keras.KerasTensor(shape, part.compute_dtype) for shape in shapes))
    elif not part.built:
        # Keras's own takes one shape, and does nothing with it.
        part.build(*(shapes if has_own else shapes[:1]))


def _parts(layer):
    """Lists the layers and seed generators that attributes lead to."""
    found = {id(layer): layer}
    values = list(vars(layer).values())
    for value in values:  # The list grows while parts and containers are found.
        if isinstance(value, dict):
            values.extend(value.values())
        elif isinstance(value, list | tuple | set):
            # TensorFlow wraps lists; only the wrapper's iterator gives all items.
            values.extend(iter(value))
        elif isinstance(value, keras.Layer) and id(value) not in found:
            found[id(value)] = value
            values.extend(vars(value).values())
        elif isinstance(value, keras.random.SeedGenerator):
            found[id(value)] = value
    return list(found.values())
