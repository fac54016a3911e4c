"""`Subwords`: segmentations drawn from a seed, the same in every process.

SentencePiece also draws segmentations, and faster, but its draws differ from process to
process whatever the seed. So this module implements its two algorithms again, for its
pieces and scores.
"""

import heapq
import itertools
import math
import random
import re
from collections.abc import Iterable

from sentencepiece import sentencepiece_model_pb2

SPACE = "\u2581"
# A character without a piece scores this much less than the lowest-scoring piece.
UNKNOWN_PENALTY = 10.0
# Largest number of characters in all cached words, about 50,000 words of 10. For a
# unigram model their lattices take about 0.4 kB a character, 220 MB.
MOST_KNOWN = 2**19


class Subwords:
    """The pieces of a SentencePiece model, from which segmentations are drawn.

    `unknown_id` is the id of characters without a piece, for models without byte
    pieces.

    Reference:
        Provilkov et al. 2020, "BPE-Dropout"; Kudo 2018, "Subword Regularization",
        section 3.3, drawing from all segmentations. Differs: a merge that is left out
        stays out, as in SentencePiece; the code of BPE-dropout tries it again after
        each merge that is done.
    """

    def __init__(self, model: bytes, unknown_id: int) -> None:
        proto = sentencepiece_model_pb2.ModelProto.FromString(model)
        kinds = sentencepiece_model_pb2.ModelProto.SentencePiece
        usable = (kinds.NORMAL, kinds.USER_DEFINED)
        self._ids, self._scores, self._bytes, symbols = {}, {}, [], []
        for number, piece in enumerate(proto.pieces):
            if piece.type == kinds.USER_DEFINED:
                symbols.append(piece.piece)
            if piece.type in usable:
                self._ids[piece.piece] = number
                self._scores[piece.piece] = piece.score
            elif piece.type == kinds.BYTE:
                self._bytes.append(number)
        self._unknown_id = unknown_id
        # User-defined symbols are never cut, nor merged with anything.
        symbols = [re.escape(x) for x in sorted(symbols, key=len, reverse=True)]
        self._symbols = re.compile(f"({'|'.join(symbols) or '(?!)'})")
        self._is_bpe = proto.trainer_spec.model_type == proto.trainer_spec.BPE
        # Words are segmented one by one unless some piece spans two of them.
        is_inside = any(SPACE in piece[1:] for piece in self._ids)
        pattern = "(?s).+" if is_inside else f"{SPACE}[^{SPACE}]*|[^{SPACE}]+"
        self._words = re.compile(pattern)
        self._longest = max(map(len, self._ids))
        self._unknown_score = min(self._scores.values()) - UNKNOWN_PENALTY
        self._known, self._known_characters = {}, 0

    def draw(self, lines: Iterable[str], strength: float, seed: int) -> list[list[int]]:
        """Draws a segmentation of each line, as ids.

        The lines must be normalized by the model, with spaces as U+2581. `strength` is
        the share of merges that are left out for a BPE model, and the exponent of the
        probabilities for a unigram model.
        """
        rng = random.Random(seed)
        draw = self._draw_bpe if self._is_bpe else self._draw_unigram
        drawn = []
        for line in lines:
            ids = []
            for number, text in enumerate(self._symbols.split(line)):
                if number % 2:  # a user-defined symbol
                    ids.append(self._ids[text])
                    continue
                for word in self._words.findall(text):
                    ids += draw(word, strength, rng)
            drawn.append(self._with_unknown_runs_as_one(ids))
        return drawn

    def _with_unknown_runs_as_one(self, ids):
        """Returns ids in which a run of characters without a piece is one id.

        SentencePiece does the same where a model has no byte pieces.
        """
        unknown = self._unknown_id
        if self._bytes or unknown not in ids:
            return ids
        pairs = zip([None, *ids], ids, strict=False)
        return [i for before, i in pairs if not before == i == unknown]

    def _draw_bpe(self, word, share, rng):
        """Segments a word by BPE, leaving out each merge with probability `share`."""
        ids, merges = self._know(self._merge, word, None)
        # `first` is the number of merges before the first that is left out. Most words
        # lose none, and keep the cached segmentation.
        done = 1.0 - share  # the probability of each merge, rounded
        if done <= 0 or done >= 1:
            first = merges if done >= 1 else 0
        else:
            # One draw from the geometric distribution, in place of one for each merge.
            first = int(math.log(1.0 - rng.random()) / math.log(done))
        if first >= merges:
            return ids
        numbers = itertools.count()  # of the merges that are considered

        def is_left_out():
            number = next(numbers)
            return number == first or (number > first and rng.random() < share)

        return self._merge(word, is_left_out)[0]

    def _merge(self, word, is_left_out):
        """Merges pairs, best first; returns ids and how many merges were considered."""
        parts = list(word)
        left, right = list(range(-1, len(parts) - 1)), list(range(1, len(parts) + 1))
        heap, count = [], 0

        def push(i, j):
            if i >= 0 and j < len(parts) and parts[i] + parts[j] in self._scores:
                text = parts[i] + parts[j]
                heapq.heappush(heap, (-self._scores[text], i, j, text))

        for i in range(len(parts) - 1):
            push(i, i + 1)
        while heap:
            _, i, j, text = heapq.heappop(heap)
            if not parts[i] or not parts[j] or parts[i] + parts[j] != text:
                continue  # One of the two has been merged with another.
            count += 1
            if is_left_out and is_left_out():
                continue
            parts[i], parts[j], right[i] = text, "", right[j]
            if right[i] < len(parts):
                left[right[i]] = i
            push(left[i], i)
            push(i, right[i])
        return [i for part in parts if part for i in self._ids_of(part)], count

    def _draw_unigram(self, word, exponent, rng):
        """Draws a segmentation by its probability, from the word's end."""
        lattice = self._know(self._lattice, word, exponent)
        end, found = len(word), []
        while end:
            pieces, weights = lattice[end]
            piece = rng.choices(pieces, weights)[0] if len(pieces) > 1 else pieces[0]
            found.append(piece)
            end -= len(piece)
        return [i for piece in reversed(found) for i in self._ids_of(piece)]

    def _know(self, function, word, option):
        """Returns `function(word, option)`, from the cache if it is there."""
        found = self._known.get((word, option))
        if found is None:
            if self._known_characters + len(word) > MOST_KNOWN:
                self._known, self._known_characters = {}, 0
            self._known_characters += len(word)
            found = self._known[word, option] = function(word, option)
        return found

    def _lattice(self, word, exponent):
        """Returns, for each end, the pieces that end there and their weights."""
        totals, lattice = [0.0], [None]
        for end in range(1, len(word) + 1):
            starts = range(max(0, end - self._longest), end)
            pieces = [word[i:end] for i in starts if word[i:end] in self._scores]
            if word[end - 1] not in self._scores:
                pieces.append(word[end - 1])
            logs = [
                totals[end - len(x)]
                + exponent * self._scores.get(x, self._unknown_score)
                for x in pieces
            ]
            largest = max(logs)
            weights = [math.exp(x - largest) for x in logs]
            totals.append(largest + math.log(sum(weights)))
            lattice.append((pieces, weights))
        return lattice

    def _ids_of(self, piece):
        if piece in self._ids:
            return [self._ids[piece]]
        if self._bytes:
            return [self._bytes[byte] for byte in piece.encode()]
        return [self._unknown_id]
