"""Recurrent encoders, the attentive recurrent decoder, and the memory of segments."""
