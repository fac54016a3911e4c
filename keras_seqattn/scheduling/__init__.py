"""How many sentences are searched at once, and in which programs.

    generation   `generate`: checks, and the choice between two policies
    static       static batches: begun together; the last few go on in a smaller program
    continuous   continuous batching: a row whose sentence has ended takes the next one
    threads      several programs at once
    programs     the one cache of compiled programs, counted
    scoring, streaming   what else runs in such programs

The public names are those of `keras_seqattn.decoding`.
"""
