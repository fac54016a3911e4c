"""Attention a block at a time, in O(T + S) memory."""
