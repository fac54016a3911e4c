"""Processes that compute together, each with devices of its own.

JAX has them, by `jax.distributed`: an array may lie on the devices of several, and all
run the same program in step. Elsewhere there is one process.
"""

import pickle
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

# The most bytes of one broadcast: JAX counts in 32 bits.
_PIECE = 2**28


def is_first() -> bool:
    """Returns whether this is the process that writes files."""
    if keras.backend.backend() != "jax":
        return True
    import jax

    return jax.process_index() == 0


def parts_of_batches() -> tuple[int, int, int]:
    """Returns how the distribution that is set divides each batch.

    That is the number of replicas, which must divide the rows of a batch; the number of
    parts that processes hold; and the number of this process's part.
    """
    return _PARTS[keras.backend.backend()]()


def from_first(make: Callable[[], Any]) -> Any:
    """Computes a value that can be pickled in the first process, and hands it to all.

    What `make` raises is raised in all processes.
    """
    if not _are_several():
        return make()
    value = error = None
    if is_first():
        try:
            value = make()
        except Exception as raised:
            error = raised
    value, error = pickle.loads(_broadcast(pickle.dumps((value, error))))
    if error is not None:
        raise error
    return value


def whole_array(x: Any) -> np.ndarray:
    """Returns a tensor or a variable as an array, also where each process holds a part.

    All processes must ask for it.
    """
    if _are_several():
        x = keras.ops.convert_to_tensor(x)
        if not (x.is_fully_addressable or x.is_fully_replicated):
            from jax.experimental import multihost_utils

            return multihost_utils.process_allgather(x, tiled=True)
    if isinstance(x, keras.Variable):
        # `ops.convert_to_numpy` cannot read a variable of several replicas.
        return x.numpy()
    return keras.ops.convert_to_numpy(x)


def mean_among_replicas(mean: Any, weight: Any) -> Any:
    """Returns a replica's mean, so that the replicas' average is the mean over all.

    That is `mean * weight / (mean of the replicas' weights)`, where `weight` is the sum
    of the weights of this replica's part. TensorFlow averages what each replica
    computes of its own rows, whatever their weights; elsewhere a program computes the
    whole batch.
    """
    if keras.backend.backend() != "tensorflow":
        return mean
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return mean
    average = context.all_reduce(tf.distribute.ReduceOp.MEAN, weight)
    return mean * tf.math.divide_no_nan(weight, average)


def sum_of_rows(
    function: Callable[..., tuple[Any, Any]], rows: tuple[Any, ...], whole: Any
) -> tuple[Any, Any]:
    """Computes a sum over rows where they lie, each device of its own rows.

    Under a distribution on JAX. A program that puts the rows of all devices in another
    order, as the loss does, would otherwise compute all of them on every device.

    Args:
        function: Differentiable function of `rows` and `whole`; returns a scalar, the
            sum over the rows, and a tensor `(N,)` of what each has.
        rows: Tensors whose first axis is that of the batch, or of N rows of which each
            sequence of the batch has as many.
        whole: Tensor that all rows share.
    """
    mesh, axis = _mesh_of_batches()
    if mesh is None or any(x.shape[0] % mesh.shape[axis] for x in rows):
        return function(*rows, whole)
    import jax

    def of_a_device(*inputs):
        total, each = function(*inputs)
        return jax.lax.psum(total, axis), each

    everywhere, split = jax.P(), jax.P(axis)
    return jax.shard_map(
        of_a_device,
        mesh=mesh,
        in_specs=(*[split] * len(rows), everywhere),
        out_specs=(everywhere, split),
        axis_names={axis},  # What splits the weights is left to the compiler.
        check_vma=False,
    )(*rows, whole)


def _mesh_of_batches():
    """Returns JAX's mesh, and which of its axes several devices split a batch over."""
    distribution = keras.distribution.distribution()
    if keras.backend.backend() != "jax" or distribution is None:
        return None, None
    mesh = distribution.device_mesh.backend_mesh
    axis = distribution.batch_dim_name
    return (mesh, axis) if mesh.shape[axis] > 1 else (None, None)


def _are_several():
    if keras.backend.backend() != "jax":
        return False
    import jax

    return jax.process_count() > 1


def _broadcast(data):
    """Returns in all processes the bytes that the first was given."""
    from jax.experimental import multihost_utils

    pieces, rest = divmod(len(data), _PIECE)
    pieces, rest = multihost_utils.broadcast_one_to_all(np.array([pieces, rest]))
    received = []
    for i, size in enumerate([_PIECE] * int(pieces) + [int(rest)]):
        piece = np.zeros(size, "uint8")
        if is_first():
            piece[:] = np.frombuffer(data[i * _PIECE : i * _PIECE + size], "uint8")
        received.append(multihost_utils.broadcast_one_to_all(piece).tobytes())
    return b"".join(received)


def _jax_parts():
    distribution = keras.distribution.distribution()
    if distribution is None:
        return 1, 1, 0
    replicas = distribution.num_model_replicas
    # Processes that share a replica hold the same rows.
    return (
        replicas,
        min(replicas, distribution.num_processes),
        distribution.data_shard_id,
    )


def _tensorflow_parts():
    import tensorflow as tf

    return tf.distribute.get_strategy().num_replicas_in_sync, 1, 0


_PARTS = {
    "jax": _jax_parts,
    "tensorflow": _tensorflow_parts,
    "torch": lambda: (1, 1, 0),
}
