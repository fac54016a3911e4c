"""Diverse beam search against its definition, in plain Python."""

import numpy as np
import pytest
from keras import ops

from keras_seqattn import decoding
from keras_seqattn.decoding.beam import with_hypotheses
from tests.decoding.test_beam import END, PAD, START, log_softmax, penalty
from tests.pairs import each_variant

V = 9
WORDS = [token for token in range(V) if token not in (PAD, START, END)]


def tables(seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(8, V, V)).astype("float32")


def run(table, search, max_length=5):
    """Searches 8 sentences, in each of which the token before says what follows."""

    def step(token_ids, state, index):
        seen = ops.one_hot(token_ids, V)
        logits = ops.einsum("bwu,buv->bwv", seen, state["sentence"]["table"])
        return logits, state

    state = {"beam": {}, "sentence": {"table": table}}
    return decoding.search(
        step, state, batch_size=8, max_length=max_length, method=search
    )


def groups_by_hand(table, search, max_length):
    """All hypotheses of each group, (score, sentence), by loops over their beams."""
    width = search.width // search.num_groups
    kept = -(-search.num_hypotheses // search.num_groups)
    live = [[(0.0, (1,))] for _ in range(search.num_groups)]
    ended = [[] for _ in live]
    for index in range(max_length):
        counts = np.zeros(V)
        for g in range(search.num_groups):
            if not live[g]:
                continue
            found = []
            for score, said in live[g]:
                after = log_softmax(table[said[-1]].astype("float64"))
                for token in (*WORDS, END):
                    by = score + after[token] - search.diversity_penalty * counts[token]
                    found.append((by, score + after[token], (*said, token)))
            found.sort(reverse=True)
            for _, score, said in found[:width]:
                if said[-1] == END or index + 1 == max_length:
                    ended[g].append((score / penalty(search, len(said) - 1), said[1:]))
            going = [(score, said) for _, score, said in found if said[-1] != END]
            live[g] = going[:width]
            for _, said in live[g]:
                counts[said[-1]] += 1
            # A group that no beam can improve any more is over.
            worst = sorted((score for score, _ in ended[g]), reverse=True)[kept - 1 :]
            possible = max(score for score, _ in live[g]) / penalty(search, max_length)
            if worst and (width == 1 or worst[0] >= possible):
                live[g] = []
            if search.patience and len(ended[g]) >= search.patience * width:
                live[g] = []
    return ended


GROUPS = {
    "pairs": decoding.BeamSearch(4, num_groups=2, num_hypotheses=4),
    "one by one": decoding.BeamSearch(
        3, num_groups=3, diversity_penalty=2.0, num_hypotheses=3
    ),
    "few kept": decoding.BeamSearch(6, num_groups=2, num_hypotheses=3),
    "patience": decoding.BeamSearch(
        4, num_groups=2, num_hypotheses=4, patience=1.0, penalty="gnmt"
    ),
}


@each_variant("search", GROUPS, on_jax=[], on_tensorflow=[])
def test_each_group_avoids_what_those_before_chose(search):
    table = tables(seed=2)
    found = run(table, search)
    kept = -(-search.num_hypotheses // search.num_groups)
    for b in range(len(table)):
        of_groups = groups_by_hand(table[b], search, 5)
        best = [x for ended in of_groups for x in sorted(ended, reverse=True)[:kept]]
        best = sorted(best, reverse=True)[: search.num_hypotheses]
        np.testing.assert_allclose(
            found.scores[b, : len(best)], [score for score, _ in best], rtol=1e-4
        )
        said = [[t for t in sentence if t != END] for _, sentence in best]
        assert [words for words, _ in found.ranked(b)] == said


@pytest.mark.slow_on("tensorflow", "jax")
def test_without_a_penalty_the_groups_are_alike():
    search = decoding.BeamSearch(4, num_groups=2, diversity_penalty=0.0)
    alone = decoding.BeamSearch(2)
    table = tables(seed=3)
    found, expected = (run(table, x) for x in (search, alone))
    np.testing.assert_array_equal(found.token_ids, expected.token_ids)


@pytest.mark.backends("torch")
def test_more_hypotheses_keep_the_groups():
    search = decoding.BeamSearch(4, num_groups=4)
    assert with_hypotheses(search, 6).width == 8
