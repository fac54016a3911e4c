"""The chunked kernel: attention a block at a time, in O(T + S) memory.

`kernel.py` begins with the algorithm; read it first.
"""
