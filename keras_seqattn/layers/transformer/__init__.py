"""Transformer blocks and what they are made of."""
