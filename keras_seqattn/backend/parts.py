"""What a layer is made of, which Keras tells of models alone."""

import keras

_CONTAINERS = (list, tuple, set)


def layers_of(layer: keras.Layer) -> list[keras.Layer]:
    """Lists a layer and those it is made of: in its attributes, at any depth.

    Args:
        layer: A layer or model.

    Returns:
        List of layers, each once, `layer` first. A `keras.Sequential` has the
        functional model that Keras makes of it among its own.

    Example:
        >>> layer = keras.layers.Bidirectional(keras.layers.SimpleRNN(2))
        >>> sorted(type(part).__name__ for part in layers_of(layer))[:3]
        ['Bidirectional', 'SimpleRNN', 'SimpleRNN']
    """
    return [part for part in _parts(layer) if isinstance(part, keras.Layer)]


def seed_generators_of(layer: keras.Layer) -> list[keras.random.SeedGenerator]:
    """Lists what a layer and those it is made of draw their seeds from.

    Args:
        layer: A layer or model.

    Returns:
        List of seed generators, each once.

    Example:
        >>> layer = keras.layers.Dropout(0.1)
        >>> seed_generators_of(layer) == [layer.seed_generator]
        True
    """
    generator = keras.random.SeedGenerator
    return [part for part in _parts(layer) if isinstance(part, generator)]


def _parts(layer):
    """Lists the layers and seed generators that are reached by attributes."""
    found = {id(layer): layer}
    values = list(vars(layer).values())
    for value in values:  # which grow as parts and containers are met
        if isinstance(value, dict):
            values.extend(value.values())
        elif isinstance(value, _CONTAINERS):
            # TensorFlow wraps lists: the wrapper's iterator alone knows all items.
            values.extend(iter(value))
        elif isinstance(value, keras.Layer) and id(value) not in found:
            found[id(value)] = value
            values.extend(vars(value).values())
        elif isinstance(value, keras.random.SeedGenerator):
            found[id(value)] = value
    return list(found.values())
