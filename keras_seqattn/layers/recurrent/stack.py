"""What stacks of recurrent layers share: options, and the making of a layer."""

from typing import Any

import keras

from keras_seqattn import arguments
from keras_seqattn.annotations import Cell
from keras_seqattn.backend.compile import compiles_cudnn
from keras_seqattn.layers.dropout import Dropout
from keras_seqattn.layers.recurrent.cell import RecurrentCell
from keras_seqattn.layers.weights.quantization import dtype_config

CELLS = ("gru", "simple")


class RecurrentStack(arguments.Checked, keras.layers.Layer):
    """Holds what encoder and decoder share: options, and the making of a recurrence."""

    def __init__(
        self,
        units: int,
        num_layers: int = 1,
        cell: Cell = "gru",
        dropout: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.units = arguments.positive_integer("units", units)
        self.num_layers = arguments.positive_integer("num_layers", num_layers)
        self.cell = arguments.choice("cell", cell, CELLS)
        self.dropout = arguments.fraction("dropout", dropout)
        self.supports_masking = True
        self.dropout_layer = Dropout(dropout, dtype=self.dtype_policy)

    def recurrence(self, **options: Any) -> keras.layers.Layer:
        """Makes the Keras layer that runs a cell along a sequence."""
        options |= {
            "return_sequences": True,
            "return_state": True,
            "dtype": self.dtype_policy,
        }
        if self.cell == "simple":
            cell = RecurrentCell(self.units, dtype=self.dtype_policy)
            return keras.layers.RNN(cell, **options)
        cudnn = "auto" if compiles_cudnn() else False  # since decoding is compiled
        return keras.layers.GRU(self.units, use_cudnn=cudnn, **options)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {
            **super().get_config(),
            "dtype": dtype_config(self),
            "units": self.units,
            "num_layers": self.num_layers,
            "cell": self.cell,
            "dropout": self.dropout,
        }
