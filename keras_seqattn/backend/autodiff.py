"""Gradients of functions, and functions whose gradients are written by hand."""

import weakref
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_seqattn.annotations import Tensor


def gradients(function: Callable[[Tensor], Tensor], x: Tensor) -> np.ndarray:
    """Computes the gradient of a scalar function of one float tensor, a NumPy array.

    `function` is written in `keras.ops`. The gradient is zero where the scalar does not
    depend on `x`.
    """
    x = keras.ops.convert_to_tensor(x, "float32")
    gradient = _GRADIENTS[keras.backend.backend()](function, x)
    return keras.ops.convert_to_numpy(gradient)


def _gradients_tensorflow(function, x):
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return tape.gradient(y, x, unconnected_gradients=tf.UnconnectedGradients.ZERO)


def _gradients_jax(function, x):
    import jax

    return jax.grad(function)(x)


def _gradients_torch(function, x):
    import torch

    x = x.detach().requires_grad_()
    with torch.enable_grad():
        y = function(x)
    # If no operation was differentiable, there is no graph to go back through.
    if not y.requires_grad:
        return torch.zeros_like(x)
    return torch.autograd.grad(y, x, materialize_grads=True)[0]


_GRADIENTS = {
    "tensorflow": _gradients_tensorflow,
    "jax": _gradients_jax,
    "torch": _gradients_torch,
}


def custom_gradient(function: Callable[..., Any]) -> Callable[..., Tensor]:
    """Returns a function whose gradient is written by hand, the same on all backends.

    `function` takes float tensors. It returns one tensor, and a function from that
    tensor's gradient to the gradients of all arguments: one tensor, or a tuple. The
    function returned here returns only the one tensor.

    `function` may close over tensors, which get no gradient. The result works within
    every transformation of the backend: `jit`, `scan`, `cond`, `vmap` and `checkpoint`
    of JAX, functions, branches and loops of TensorFlow, `keras.remat`. It can be
    differentiated as many times as the operations in `function` and its gradient can.

    Example:
        >>> @custom_gradient
        ... def clipped(x):
        ...     return keras.ops.clip(x, 0, 1), lambda upstream: upstream
        >>> x = np.array([0.5, 2.0])
        >>> gradients(lambda x: keras.ops.sum(clipped(x)), x).tolist()
        [1.0, 1.0]
    """

    def differentiable(*inputs):
        inputs = map(keras.ops.convert_to_tensor, inputs)
        return _CUSTOM_GRADIENTS[keras.backend.backend()](function, *inputs)

    return differentiable


_COLLECTION = "keras_seqattn/gradients"


def _custom_gradient_tensorflow(function, *inputs):
    """Applies the function so that TensorFlow does not keep its graph alive.

    TensorFlow keeps the outputs and the gradient of each function in a graph forever:
    https://github.com/tensorflow/tensorflow/blob/v2.21.0/tensorflow/python/ops/custom_gradient.py#L512
    So it gets a list of outputs, which is emptied at the end, and a weak reference to
    the gradient, which is held by a collection of the graph.
    """
    import tensorflow as tf

    if tf.executing_eagerly():
        return keras.ops.custom_gradient(function)(*inputs)
    outputs, gradients = [], []

    def forward(*inputs):
        output, gradient = function(*inputs)
        outputs.append(output)
        gradients.append(gradient)
        reference = weakref.ref(gradient)
        return outputs, lambda *upstream: reference()(*upstream)

    (output,) = keras.ops.custom_gradient(forward)(*inputs)
    outputs[0] = None
    output.graph.add_to_collection(_COLLECTION, gradients[0])  # freed with the graph
    return output


def _custom_gradient_jax(function, *inputs):
    """Applies the function, passing the tensors that it closes over as arguments.

    Those of its gradient too: JAX calls both again after the trace that made such a
    tensor has ended.
    """
    import jax

    backward = None  # set when `_without_closure` traces `forward`

    def forward(*inputs):
        nonlocal backward
        output, gradient = function(*inputs)
        backward, residuals = _without_closure(gradient, output)
        return output, residuals

    forward_closed, closed_over = _without_closure(forward, *inputs)

    @jax.custom_vjp
    def differentiable(inputs, closed_over):
        return forward_closed(closed_over, *inputs)[0]

    def forward_with_residuals(inputs, closed_over):
        return forward_closed(closed_over, *inputs)

    def differentiate(residuals, upstream):
        grads = backward(residuals, upstream)
        return grads if isinstance(grads, tuple) else (grads,), None

    differentiable.defvjp(forward_with_residuals, differentiate)
    return differentiable(inputs, closed_over)


def _without_closure(function, *example):
    """Splits a function into one that closes over no tensor, and a list of the tensors.

    The new function takes that list, then arguments of the shapes and dtypes of
    `example`.
    """
    import jax

    traced, like = jax.make_jaxpr(function, return_shape=True)(*example)

    def call_jaxpr(closed_over, *args):
        outputs = jax.core.eval_jaxpr(traced.jaxpr, closed_over, *args)
        return jax.tree.unflatten(jax.tree.structure(like), outputs)

    return call_jaxpr, traced.consts


def _custom_gradient_torch(function, *inputs):
    return _TORCH_FUNCTION.apply(function, *inputs)


def _make_torch_function():
    import torch

    class Differentiated(torch.autograd.Function):
        """Replaces Keras's own, whose second derivative is missing or wrong."""

        @staticmethod
        def forward(ctx, function, *inputs):
            ctx.save_for_backward(*inputs)
            ctx.function = function
            output, ctx.gradient = function(*inputs)
            return output

        @staticmethod
        def backward(ctx, upstream):
            gradient = ctx.gradient
            if torch.is_grad_enabled() and not torch.compiler.is_compiling():
                # This gradient will be differentiated again, but the tensors kept by
                # the forward pass have no graph.
                _, gradient = ctx.function(*ctx.saved_tensors)
            grads = gradient(upstream)
            return None, *(grads if isinstance(grads, tuple) else (grads,))

    return Differentiated


# Made once, not inside a call, since `torch.compile` could not trace its making.
_TORCH_FUNCTION = _make_torch_function() if keras.backend.backend() == "torch" else None
_CUSTOM_GRADIENTS = {
    "tensorflow": _custom_gradient_tensorflow,
    "jax": _custom_gradient_jax,
    "torch": _custom_gradient_torch,
}
