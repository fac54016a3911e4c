"""The PyTorch peer: `torch.nn.Transformer`, eager or compiled, with fused Adam."""

import itertools
import math
import time

import torch
from torch import nn

from benchmarks.shapes import PAD_ID


class Translation(nn.Module):
    """Maps source and target ids to the loss, as the Keras models and their loss do."""

    def __init__(self, shape):
        """Builds the modules of a `Shape`."""
        super().__init__()
        size = shape.vocabulary_size, shape.model_dim
        self.scale = math.sqrt(shape.model_dim)
        self.source_table = nn.Embedding(*size)
        self.target_table = nn.Embedding(*size)
        self.dropout = nn.Dropout(shape.dropout)
        self.transformer = nn.Transformer(
            shape.model_dim,
            shape.num_heads,
            shape.encoder_layers,
            shape.decoder_layers,
            shape.intermediate_dim,
            shape.dropout,
            batch_first=True,
            norm_first=True,
        )
        for module in self.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = shape.attention_dropout
            if isinstance(
                module, (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
            ):
                module.dropout.p = 0.0  # No other system drops hidden units.
        self.output = nn.Linear(shape.model_dim, shape.vocabulary_size, bias=False)
        self.loss = nn.CrossEntropyLoss(ignore_index=PAD_ID, label_smoothing=0.1)
        self.register_buffer("positions", _sinusoids(shape.length, shape.model_dim))
        causal = nn.Transformer.generate_square_subsequent_mask(shape.length)
        self.register_buffer("causal", causal.isinf())

    def forward(self, source_ids, target_ids, labels):
        """Computes the mean loss over the real tokens."""
        mask = source_ids == PAD_ID
        hidden = self.transformer(
            self._embed(self.source_table, source_ids),
            self._embed(self.target_table, target_ids),
            tgt_mask=self.causal,
            tgt_is_causal=True,
            src_key_padding_mask=mask,
            memory_key_padding_mask=mask,
        )
        return self.loss(self.output(hidden).flatten(0, 1), labels.flatten())

    def _embed(self, table, token_ids):
        return self.dropout(table(token_ids) * self.scale + self.positions)


def _sinusoids(length, dim):
    exponent = torch.arange(0, dim, 2) / dim
    angle = torch.arange(length)[:, None] / 10000.0**exponent
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(1)


def trainer(shape, batches, compiled):
    """Builds the model; returns its parameter count and a function of steps to run."""
    model = Translation(shape).train()
    parameters = sum(p.numel() for p in model.parameters())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    forward = torch.compile(model) if compiled else model
    tensors = (torch.from_numpy(ids.astype("int64")) for ids in batches)
    data = itertools.cycle(list(zip(*tensors, strict=True)))

    def run(steps):
        start = time.perf_counter()
        for batch in itertools.islice(data, steps):
            optimizer.zero_grad(set_to_none=True)
            loss = forward(*batch)
            loss.backward()
            optimizer.step()
        loss = loss.item()
        return time.perf_counter() - start, loss

    return parameters, run
