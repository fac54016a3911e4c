"""The weights of a `TranslationTransformer`, laid out as CTranslate2 reads them.

What CTranslate2 cannot express is refused with a `ValueError` that says why.

Shapes: D model_dim, H heads, K key_dim, V value_dim, W width of a head in CTranslate2,
O width of an output, L positions.
"""

from typing import Any, NoReturn

import keras
import numpy as np

from keras_seqattn.layers import (
    LearnedPositions,
    MultiHeadAttention,
    RelativeBias,
    RotaryPositions,
    SinusoidalPositions,
    sinusoidal_table,
)
from keras_seqattn.layers.transformer.feed_forward import gelu_tanh
from keras_seqattn.models import TranslationTransformer

# By function: another of the same name may differ, as `keras.ops.gelu` does.
ACTIVATIONS = {
    keras.activations.relu: "RELU",
    keras.ops.relu: "RELU",
    keras.activations.gelu: "GELU",
    gelu_tanh: "GELUTanh",
    keras.activations.silu: "SWISH",
    keras.ops.silu: "SWISH",
    keras.activations.tanh: "Tanh",
    keras.ops.tanh: "Tanh",
    keras.activations.sigmoid: "Sigmoid",
    keras.ops.sigmoid: "Sigmoid",
}


def refuse(requirement: str, received: str) -> NoReturn:
    """Raises the error of a model that CTranslate2 cannot express."""
    raise ValueError(
        f"`model` must {requirement} for CTranslate2. Received: {received}."
    )


def transformer_spec(model: TranslationTransformer, max_length: int) -> Any:
    """Returns a `ctranslate2.specs.TransformerSpec` with a model's weights.

    It has no vocabularies. `max_length` is the number of positions L in the engine's
    table, for models that add positions to the embedding.
    """
    from ctranslate2.specs import transformer_spec as specs

    config = model.config
    stacks = {side: _blocks(model, side) for side in ("encoder", "decoder")}
    kinds = specs.TransformerEncoderSpec, specs.TransformerDecoderSpec
    made = [
        kind(
            len(blocks),
            **_stack_options(blocks, side),
            layernorm_embedding=config.embedding_norm,
        )
        for kind, (side, blocks) in zip(kinds, stacks.items(), strict=True)
    ]
    spec = specs.TransformerSpec(*made)
    source = model.get_layer("source_embedding")
    shared = config.target_vocabulary_size is None and config.tie_embeddings
    target = source if shared else model.get_layer("target_embedding")
    spec.encoder.embeddings[0].weight = _table(source)
    spec.decoder.embeddings.weight = _table(target)
    embeddings = {"encoder": source, "decoder": target}
    for side, blocks in stacks.items():
        stack = getattr(spec, side)
        _fill_embedding(stack, blocks[0], embeddings[side], max_length)
        for layer, block in zip(stack.layer, blocks, strict=True):
            _fill_block(layer, block)
        if blocks[0].normalize_first:
            _fill_norm(stack.layer_norm, model.get_layer(f"{side}_norm"))
    output = target if config.tie_embeddings else model.get_layer("output")
    _fill_output(spec.decoder.projection, output, model)
    if config.width_factor != 1.0:
        spec.decoder.scale_outputs = np.float32(config.width_factor)
    spec.config.layer_norm_epsilon = config.epsilon
    return spec


def _blocks(model, side: str) -> list:
    """Returns a stack's blocks, lowest first; a shared one is there for each depth."""
    shared = model.config.share_layers
    return [
        model.get_layer(f"{side}_{0 if shared else depth}")
        for depth in range(getattr(model.config, f"{side}_layers"))
    ]


def _stack_options(blocks, side):
    """Returns the arguments of a stack's specification, the same for all blocks."""
    from ctranslate2.specs import Activation

    block = blocks[0]
    attention = _checked_attention(block.attention_residual)
    if block.activation not in ACTIVATIONS:
        names = tuple(dict.fromkeys(known.__name__ for known in ACTIVATIONS))
        activation = getattr(block.activation, "__name__", repr(block.activation))
        module = block.activation.__module__
        refuse(f"have an activation of {names}", f"{activation=} of {module}")
    sizes = _head_sizes(attention)
    if side == "decoder":
        cross = _head_sizes(_checked_attention(block.cross_residual))
        if cross != sizes:
            refuse(
                "have as many heads and key-value heads, of the same width, in both "
                "attentions of a decoder block",
                f"{sizes} and, to the source, {cross}",
            )
    return {
        **sizes,
        "pre_norm": block.normalize_first,
        "activation": getattr(Activation, ACTIVATIONS[block.activation]),
        "ffn_glu": block.gated,
        "rms_norm": block.norm == "rms",
        **_positions_options([_attention(block) for block in blocks], side),
    }


def _head_sizes(attention):
    """Returns the numbers of heads and of key-value heads (None if equal), and W."""
    heads, groups = attention.num_heads, attention.num_key_value_heads
    return {
        "num_heads": heads,
        "num_heads_kv": None if groups == heads else groups,
        "head_dim": _head_width(attention),
    }


def _attention(block):
    return block.attention_residual.sublayer


def _positions_options(attentions, side):
    """Returns the arguments for the positions inside a stack's self-attentions."""
    from ctranslate2.specs.attention_spec import RotaryScalingType

    positions = attentions[0].positions
    if positions is None:
        return {}
    if type(positions) is RotaryPositions:
        if positions.llama3_scaling is not None:
            refuse(
                "have rotary positions without `llama3_scaling`",
                f"llama3_scaling={dict(positions.llama3_scaling)!r}",
            )
        return {
            "rotary_dim": attentions[0].key_dim,
            "rotary_interleave": False,
            "rotary_base": positions.base,
            "rotary_scaling_type": RotaryScalingType.Linear,
            "rotary_scaling_factor": positions.scaling,
        }
    if type(positions) is not RelativeBias:
        refuse(
            "have sinusoidal, learned, rotary or relative positions, or none, in both "
            "its stacks",
            f"positions={type(positions).__name__}",
        )
    tables = [_array(attention.positions.table) for attention in attentions]
    if not all(np.array_equal(table, tables[0]) for table in tables):
        refuse(
            "have the same table of relative positions at every depth, as with "
            "`share_layers=True`,",
            f"{len(tables)} tables in the {side}",
        )
    return {"relative_attention_bias": True}


def _checked_attention(residual):
    """Returns a residual's attention; refuses one that CTranslate2 does not know."""
    attention = residual.sublayer
    if type(attention) is not MultiHeadAttention:
        refuse(
            "attend by `MultiHeadAttention` everywhere",
            f"an attention of class {type(attention).__name__}",
        )
    unknown = {
        "score": attention.score == "additive",
        "use_gate": attention.use_gate,
        "qk_norm": attention.qk_norm,
        "sliding_window": attention.sliding_window is not None,
    }
    for name, refused in unknown.items():
        if refused:
            value = getattr(attention, name)
            refuse(f"attend without the option `{name}`", f"{name}={value!r}")
    return attention


def _head_width(attention):
    """Returns the one width W that CTranslate2 has for queries, keys and values.

    Narrower ones are padded with zeros, which change no product.
    """
    return max(attention.key_dim, attention.value_dim)


def _fill_embedding(stack, block, embedding, max_length):
    """Fills scale, norm and table of positions with ours, not CTranslate2's."""
    if embedding.embedding_scale is not None:
        stack.scale_embeddings = np.float32(embedding.embedding_scale)
    if embedding.norm_layer is not None:
        _fill_norm(stack.layernorm_embedding, embedding.norm_layer)
    positions = embedding.positions
    if _attention(block).positions is None:
        stack.position_encodings.encodings = _position_table(embedding, max_length)
    elif positions is not None:
        refuse(
            "have positions either on the embedding or inside the attention",
            f"positions={type(positions).__name__} with "
            f"{type(_attention(block).positions).__name__} inside the attention",
        )


def _position_table(embedding, length):
    """Returns the rows `(L, D)` that the embedding adds: zeros where it adds none."""
    positions, width = embedding.positions, embedding.model_dim
    if positions is None:
        return np.zeros((length, width), "float32")
    if type(positions) is LearnedPositions:
        return _array(positions.table)[:length]
    if type(positions) is not SinusoidalPositions:
        refuse(
            "have sinusoidal, learned, rotary or relative positions, or none",
            f"positions={type(positions).__name__}",
        )
    table = sinusoidal_table(
        length,
        width,
        positions.base,
        positions.cosine_exponent,
        positions.shift,
        positions.layout,
    )
    return _array(table)


def _table(embedding):
    _check_not_quantized(embedding)
    table = _array(embedding._merged_weight())
    if embedding.zero_id is not None:
        table = table.copy()  # The output may share this table.
        table[embedding.zero_id] = 0.0
    return table


def _fill_block(layer, block):
    residual, cross = block.attention_residual, block.cross_residual
    _fill_norm(layer.self_attention.layer_norm, residual.norm_layer)
    _fill_attention(layer.self_attention, residual, fused=3)
    if isinstance(residual.sublayer.positions, RelativeBias):
        _fill_relative(layer.self_attention, residual.sublayer.positions, cross is None)
    if cross is not None:
        _fill_norm(layer.attention.layer_norm, cross.norm_layer)
        _fill_attention(layer.attention, cross, fused=2)
    residual = block.feed_forward_residual
    _fill_norm(layer.ffn.layer_norm, residual.norm_layer)
    forward = residual.sublayer
    _fill_dense(layer.ffn.linear_0, forward.hidden_dense)
    _fill_dense(layer.ffn.linear_1, forward.output_dense)
    if forward.gated:
        _fill_dense(layer.ffn.linear_0_noact, forward.gate_dense)


def _fill_norm(spec, norm):
    if isinstance(norm, keras.layers.RMSNormalization):
        spec.gamma = _array(norm.scale)
    else:
        spec.gamma, spec.beta = _array(norm.gamma), _array(norm.beta)


def _fill_attention(spec, residual, fused):
    """Fills one attention; the last `fused` of q, k and v become one product."""
    attention = _checked_attention(residual)
    width = _head_width(attention)
    scale = attention.key_dim**-0.5 if attention.scale is None else attention.scale
    spec.queries_scale = np.float32(1.0 if attention.score == "dot" else scale)
    denses = (attention.query_dense, attention.key_dense, attention.value_dense)
    projections = [_project_in(dense, width) for dense in denses]
    for part in projections[:-fused]:
        _fill_linear(spec.linear[0], *part)
    weights, biases = zip(*projections[-fused:], strict=True)
    _fill_linear(
        spec.linear[-2],
        np.concatenate(weights),
        np.concatenate(biases) if attention.use_bias else None,
    )
    _fill_linear(spec.linear[-1], *_project_out(attention.output_dense, width))


def _project_in(dense, width):
    """Returns weights `(heads W, D)` and biases: heads are padded with zeros to W."""
    kernel, bias = _dense(dense)  # (D, heads, K or V)
    padding = (0, width - kernel.shape[-1])
    kernel = np.pad(kernel, ((0, 0), (0, 0), padding))
    if bias is not None:
        bias = np.pad(bias, ((0, 0), padding)).ravel()
    return kernel.reshape(len(kernel), -1).T, bias


def _project_out(dense, width):
    """Returns weights `(O, H W)` and biases."""
    kernel, bias = _dense(dense)  # (H, V, O)
    kernel = np.pad(kernel, ((0, 0), (0, width - kernel.shape[1]), (0, 0)))
    return kernel.reshape(-1, kernel.shape[-1]).T, bias


def _fill_relative(spec, positions, is_encoder):
    """Fills the table of relative positions in T5's layout.

    CTranslate2 reads a table of both directions in an encoder, the first half for the
    past, and one of the past alone in a decoder, whatever the layer was made for.
    """
    table, both = _array(positions.table), positions.bidirectional
    if is_encoder and not both:  # Later positions are at distance 0.
        table = np.concatenate([table, np.repeat(table[:1], len(table), axis=0)])
    elif both and not is_encoder:
        table = table[: len(table) // 2]
    spec.relative_attention_bias = table
    spec.relative_attention_max_distance = np.int32(positions.max_distance)


def _fill_dense(spec, dense):
    kernel, bias = _dense(dense)
    _fill_linear(spec, kernel.T, bias)


def _fill_output(spec, output, model):
    """Fills the projection to logits, with a bias against tokens never generated."""
    _check_not_quantized(output)
    tied = hasattr(output, "embeddings")
    weight = _array(output._merged_weight())
    weight = weight if tied else weight.T
    bias = np.zeros(len(weight), "float32")
    if model.config.logits_bias:
        bias += _array(output.bias_layer.bias if tied else output.bias)
    never = {model.pad_id, model.start_id} - {model.end_id}
    # Not the lowest float32: it also has to fit float16.
    bias[sorted(never)] = -1e4
    _fill_linear(spec, weight, bias)


def _fill_linear(spec, weight, bias=None):
    spec.weight = np.ascontiguousarray(weight)
    if bias is not None:
        spec.bias = np.ascontiguousarray(bias)


def _dense(dense):
    """Returns a Keras layer's kernel, and its bias or None."""
    _check_not_quantized(dense)
    kernel = _array(dense._merged_weight())
    return kernel, None if dense.bias is None else _array(dense.bias)


def _check_not_quantized(layer):
    mode = getattr(layer, "quantization_mode", None)
    if mode is not None:
        refuse(
            "not be quantized yet (export before `quantize`, with `quantization=...`)",
            f"layer {layer.name!r} with quantization_mode={mode!r}",
        )


def _array(tensor):
    return keras.ops.convert_to_numpy(keras.ops.cast(tensor, "float32"))
