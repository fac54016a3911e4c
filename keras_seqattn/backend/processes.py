"""Processes that compute together, each with its own devices.

JAX has them, with `jax.distributed`: an array may be spread over the devices of several
processes, which all run the same programs in step. Other backends have one process.
"""

import pickle
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

# Most bytes sent in one broadcast: JAX counts them in 32 bits.
_PIECE = 2**28


def is_first() -> bool:
    """Returns whether this is the first process, the one that writes files."""
    if keras.backend.backend() != "jax":
        return True
    import jax

    return jax.process_index() == 0


def are_several() -> bool:
    """Returns whether several processes compute together."""
    if keras.backend.backend() != "jax":
        return False
    import jax

    return jax.process_count() > 1


def parts_of_batches() -> tuple[int, int, int]:
    """Returns how the active distribution divides each batch.

    Three integers: the number of replicas, which must divide the rows of a batch; the
    number of parts that the processes hold; and the index of this process's part.
    """
    return _PARTS[keras.backend.backend()]()


def from_first(make: Callable[[], Any]) -> Any:
    """Computes a value in the first process and returns it in all of them.

    The value must be picklable. An error that `make` raises is raised in all processes.
    """
    if not are_several():
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
    """Returns a tensor or variable as an array, even if each process holds only a part.

    All processes must call this.
    """
    if are_several():
        x = keras.ops.convert_to_tensor(x)
        if not (x.is_fully_addressable or x.is_fully_replicated):
            from jax.experimental import multihost_utils

            return multihost_utils.process_allgather(x, tiled=True)
    if isinstance(x, keras.Variable):
        # `ops.convert_to_numpy` cannot read a variable of several replicas.
        return x.numpy()
    return keras.ops.convert_to_numpy(x)


def share_of_mean(mean: Any, weight: Any) -> Any:
    """Returns a replica's share of the mean over all rows, given that of its own rows.

    `weight` is the sum of the weights of this replica's rows. TensorFlow sums what the
    replicas return, so the share is `mean * weight / (sum of the replicas' weights)`.
    On other backends a program computes the whole batch, and `mean` is returned.
    """
    if keras.backend.backend() != "tensorflow":
        return mean
    import tensorflow as tf

    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    if replicas == 1:
        return mean
    context = tf.distribute.get_replica_context()
    if context is not None:
        average = context.all_reduce(tf.distribute.ReduceOp.MEAN, weight)
        mean = mean * tf.math.divide_no_nan(weight, average)
    return mean / replicas


def shares_of_sums(
    function: Callable[[list[Any]], list[Any]], values: list[Any]
) -> list[Any]:
    """Computes a function of the sums over all replicas; returns this one's shares.

    TensorFlow sums what the replicas return, so a share is one part of as many as there
    are replicas. Where one program computes the whole batch, as on other backends,
    `values` are returned as they are.
    """
    if keras.backend.backend() != "tensorflow":
        return values
    import tensorflow as tf

    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    context = tf.distribute.get_replica_context()
    if replicas == 1 or context is None:
        return values
    sums = context.all_reduce(tf.distribute.ReduceOp.SUM, values)
    return [value / replicas for value in function(sums)]


def sum_of_rows(
    function: Callable[..., tuple[Any, Any]], rows: tuple[Any, ...], whole: Any
) -> tuple[Any, Any]:
    """Computes a sum over rows, each device summing the rows that it holds.

    This applies under a distribution on JAX. Without it a program that reorders the
    rows of all devices, as the loss does, would compute all of them on every device.

    Args:
        function: Differentiable function of `rows` and `whole`; returns a scalar, the
            sum over the rows, and a tensor `(N,)` with one value for each row.
        rows: Tensors whose first axis is the batch, or N rows of which each sequence of
            the batch has the same number.
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
        axis_names={axis},  # Axes that split the weights are left to the compiler.
        check_vma=False,
    )(*rows, whole)


def _mesh_of_batches():
    """Returns JAX's mesh and its batch axis, if several devices split a batch."""
    distribution = keras.distribution.distribution()
    if keras.backend.backend() != "jax" or distribution is None:
        return None, None
    mesh = distribution.device_mesh.backend_mesh
    axis = distribution.batch_dim_name
    return (mesh, axis) if mesh.shape[axis] > 1 else (None, None)


def _broadcast(data):
    """Returns the first process's bytes in all processes."""
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
        if are_several():
            raise ValueError(
                "`keras.distribution.set_distribution` must be called before batches "
                "are divided among processes, or each would train on all rows. "
                "Received: no distribution, in several processes."
            )
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
