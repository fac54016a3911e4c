"""Successive halving: its rungs, who goes on, and whose the time is."""

import math
from types import SimpleNamespace

import keras_tuner
import pytest

from keras_seqattn.tuning import halving, records, runs
from keras_seqattn.tuning.halving import RUNGS, Standing, Step
from keras_seqattn.tuning.records import TrialRecord

pytestmark = pytest.mark.backends("jax")  # nothing is computed


def record(number, scores, seconds=1.0, status=records.PAUSED, **fields):
    made = TrialRecord(str(number), configuration=SimpleNamespace(vocabulary_size=1))
    for epoch, score in enumerate(scores):
        made.note_epoch(epoch, {}, score, "min", seconds, at=(epoch + 1) * seconds)
    vars(made).update(status=status, **fields)
    return made


def plan(**options):
    given = {"direction": "min", "tokens": lambda record: 1, "seconds": math.inf}
    return halving.Plan(**given | {"share": 0.75, "epochs": 27} | options)


def overfitting(**values):
    """A run whose training loss is far below its validation loss."""
    made = record(0, [3.0 - 0.1 * epoch for epoch in range(8)])
    for entry in made.epochs:
        entry.update(val_loss=2.0, loss=1.0)
    made.values = {**values, halving.RUNG: 3}
    return made


def test_rungs_come_from_the_most_epochs_or_from_the_time():
    one, two = record(0, [3.0]), record(0, [3.0, 2.0, 2.0])
    assert Standing(plan(), [one]).rung_epochs(one) == [1, 3, 9, 27]
    timed = plan(seconds=72.0, epochs=1000)
    assert Standing(timed, [one]).rung_epochs(one) is None  # the first epoch compiles
    # 54 / 27 epochs are too few.
    assert Standing(timed, [two]).rung_epochs(two) == [3, 6, 18, 54]
    slow = record(0, [3.0, 2.0, 2.0])
    slow.epochs[0]["seconds"] = 8.0
    # What compiling costs.
    assert Standing(timed, [slow]).rung_epochs(slow) == [7, 7, 18, 54]
    settled = record(1, [1.0] * 9)
    assert Standing(timed, [two, settled]).rung_epochs(two) == [3, 3, 3, 9]


def test_with_a_limit_of_seconds_a_slower_model_has_fewer_epochs():
    first = record(0, [3.0, 2.0, 2.0])
    slow = record(1, [3.0, 2.0], seconds=2.0)
    timed = plan(seconds=216.0, epochs=1000)
    assert Standing(timed, [first, slow]).rung_epochs(first) == [6, 18, 54, 162]
    assert Standing(timed, [first, slow]).rung_epochs(slow) == [3, 9, 27, 81]
    assert Standing(plan(), [first, slow]).rung_epochs(slow) == [1, 3, 9, 27]


@pytest.mark.parametrize("score", [9.0, 1.0])
def test_who_is_slow_is_promoted_rung_by_rung(score):
    """In seconds it may be past a further rung: it does not lead for that."""
    timed = plan(seconds=72.0, epochs=1000, workers=100)
    sent = {"values": {halving.RUNG: 0}}
    known = [record(0, [3.0, 2.0, 2.0], **sent), record(1, [3.5, 3.0, 3.0], **sent)]
    known.append(record(2, [score, score], seconds=20.0, **sent))
    assert Standing(timed, known).rung_epochs(known[2]) == [1, 1, 1, 3]
    best = "2" if score < 2 else "0"
    assert Standing(timed, known).leader.trial_id == best
    assert Standing(timed, known).next_step() == Step(1, best)


def test_a_larger_vocabulary_has_fewer_tokens_and_more_epochs():
    tokens = {"0": 100, "1": 50}
    of_size = plan(tokens=lambda record: tokens[record.trial_id], epochs=9)
    one, other = record(0, [3.0]), record(1, [3.0])
    assert Standing(of_size, [one]).rung_epochs(one)[-1] == 9
    assert Standing(of_size, [one]).rung_epochs(other)[-1] == 9
    timed = plan(tokens=of_size.tokens, epochs=1000, seconds=108.0)
    first = record(0, [3.0, 3.0])
    assert Standing(timed, [first]).rung_epochs(first) == [3, 9, 27, 81]
    assert Standing(timed, [first]).rung_epochs(other) == [6, 18, 54, 162]


def test_the_best_third_of_a_rung_goes_on():
    known = [record(0, [3.0]), record(1, [2.0])]
    assert Standing(plan(), known).next_step() == Step(0)
    known.append(record(2, [4.0]))
    assert Standing(plan(), known).next_step() == Step(1, "1")
    known.append(record(3, [2.0, 1.5, 1.0], continued_from="1", inherited_epochs=1))
    assert Standing(plan(), known).next_step() == Step(0)


def test_the_best_third_has_the_largest_scores_where_more_is_better():
    known = [record(number, [score]) for number, score in enumerate((3.0, 4.0, 2.0))]
    standing = Standing(plan(direction="max"), known)
    assert standing.leader is known[1]
    assert standing.next_step() == Step(1, "1")


def test_what_acts_late_competes_with_its_like():
    values = {"values": {"dropout": 0.1}}
    late = {"values": {"dropout": 0.3}}
    known = [record(number, [2.0 + number], **values) for number in range(2)]
    known += [record(number, [9.0 - number], **late) for number in range(2, 5)]
    assert Standing(plan(), known).next_step() == Step(1, "4")


def test_what_acts_early_leads_when_the_first_has_come_to_its_end():
    first = {"dropout": 0.1, "learning_rate": 0.001}
    known = [record(0, [2.0], values=first)]
    known.append(record(1, [1.0], values=first | {"learning_rate": 0.004}))
    known.append(record(2, [1.5], values=first | {"dropout": 0.3}))
    known.append(record(3, [1.2], values={"dropout": 0.3, "learning_rate": 0.004}))
    assert Standing(plan(), known).leader is known[2]  # late, and ahead nevertheless
    known.append(record(4, [0.9] * 9, continued_from="0", values=first))
    assert [*runs.lineage(known[4], known)] == [known[4], known[0]]
    assert runs.has_plateaued(known[4])
    assert Standing(plan(), known).leader is known[4]
    known.append(record(5, [0.8] * 9, continued_from="1", values=known[1].values))
    assert Standing(plan(), known).leader is known[5]


def test_who_is_ahead_on_a_lower_rung_leads():
    """Its best score can only get better; on one rung, equal epochs are compared."""
    first, other = (record(n, [3.0] * 8 + [2.0 + n / 9] * 2) for n in (0, 1))
    later = record(2, [3.0] * 8 + [2.5, 1.9])
    short = record(3, [2.0], values={halving.RUNG: 0})
    assert Standing(plan(), [first, other, later, short]).leader is first
    short.note_epoch(0, {}, 1.8, "min", 1.0)
    assert Standing(plan(), [first, other, later, short]).leader is short


def test_names_tell_what_acts_later():
    def made(**values):
        return TrialRecord("0", values=values)

    first = made(dropout_rate=0.1, lr=0.01)
    assert runs.acts_later(made(dropout_rate=0.2), first)
    assert not runs.acts_later(first, made(dropout_rate=0.2))
    assert runs.acts_later(first, made(lr=0.02))
    first = made(num_layers=2, weight_decay=0.1, learning_rate="cosine")
    assert runs.acts_later(made(num_layers=3), first)
    assert runs.acts_later(first, made(weight_decay=0.0))
    assert not runs.acts_later(made(learning_rate="constant"), first)
    assert not runs.acts_later(first, made(num_heads=2, units=3))


def test_the_leader_has_its_share_of_the_time():
    leader = record(0, [3.0, 2.0, 1.0])
    timed = plan(seconds=100.0, epochs=1000)
    at_first = {"values": {halving.RUNG: 0}}
    known = [leader, record(1, [9.0] * 3, seconds=9.0, **at_first)]
    assert Standing(timed, known).next_step() == Step(RUNGS, "0")
    two = plan(seconds=100.0, epochs=1000, workers=2)
    assert Standing(two, known).next_step() == Step(0)
    elsewhere = record(2, [], status=records.RUNNING)  # on a different machine
    assert Standing(timed, [*known, elsewhere]).next_step() == Step(0)
    known.append(record(2, [8.0] * 3, seconds=9.0, **at_first))
    # To compare it with others.
    assert Standing(timed, known).next_step() == Step(1, "0")


def test_the_first_trial_is_far_on_its_way_before_others_begin():
    timed = plan(seconds=72.0, epochs=1000)
    first = record(0, [9.0 - epoch for epoch in range(3)])
    assert Standing(timed, [first]).rung_epochs(first) == [3, 6, 18, 54]
    assert Standing(timed, [first]).next_step() == Step(2, "0")
    first = record(0, [99.0 - epoch for epoch in range(18)])
    assert Standing(timed, [first]).next_step() == Step(0)
    running = record(0, [9.0, 8.0], status=records.RUNNING)
    two = plan(seconds=72.0, workers=2)
    assert Standing(two, [running]).next_step() == Step(0)


def test_time_for_a_few_draws_alone_is_the_leader_s():
    first = record(0, [99.0 - epoch for epoch in range(18)])
    assert Standing(plan(seconds=72.0), [first]).next_step() == Step(0)
    first.epochs[0]["seconds"] = 2.5  # for the same epochs: what compiling costs
    whole = Step(RUNGS, "0")
    assert Standing(plan(seconds=72.0), [first]).next_step() == whole


def test_others_are_tried_when_a_leader_overfits_where_nothing_regularizes():
    """Even if the time is enough for few of them."""

    def overfit(number, **fields):
        made = record(number, [99.0 - epoch for epoch in range(18)], **fields)
        made.epochs[0]["seconds"] = 2.5
        for epoch, entry in enumerate(made.epochs):
            entry["val_loss"] = 2.0 + epoch
        return made

    timed, first = plan(seconds=72.0), overfit(0)
    assert Standing(timed, [first]).is_due(first, RUNGS)
    assert Standing(timed, [first]).next_step() == Step(0)
    spent = record(1, [199.0 - epoch for epoch in range(17)])
    assert Standing(timed, [first, spent]).next_step() == Step(RUNGS, "0")
    begun = {"continued_from": "0", "inherited_epochs": 1}
    regularized = overfit(1, values={"dropout": 0.3}, **begun)
    assert Standing(timed, [first, regularized]).next_step() == Step(RUNGS, "1")
    # One that has waited is not asked again: no others may be left.
    waited = overfit(1, **begun)
    assert not Standing(timed, [first, waited]).is_due(waited, RUNGS)


def test_without_a_limit_of_seconds_a_leader_that_overfits_trains_to_its_rung():
    leader = overfitting()
    assert runs.has_overfit(leader)
    assert not Standing(plan(), [leader]).is_due(leader, 3)


def test_a_leader_that_overfits_goes_on_with_more_of_what_regularizes():
    def more(values):
        return values | {"dropout": min(0.3, values["dropout"] + 0.1)}

    def rising(dropout, **fields):
        made = record(0, [3.0 - 0.1 * epoch for epoch in range(8)], **fields)
        losses = [3.0, 2.5, 2.0, 2.1, 2.1, 2.2, 2.2, 2.1]
        for epoch, loss in zip(made.epochs, losses, strict=True):
            epoch["val_loss"] = loss
        made.values = {"dropout": dropout, halving.RUNG: 3}
        return made

    leader = rising(dropout=0.1)
    timed = plan(seconds=1000.0, epochs=1000, regularize=more)
    again = Step(3, "0", regularized=True)
    assert Standing(timed, [leader]).next_step() == again
    # Not where there is no more, or too little time to be of use.
    assert Standing(timed, [rising(dropout=0.3)]).next_step() == Step(2, "0")
    short = plan(seconds=16.9, epochs=1000, regularize=more)
    assert not Standing(short, [leader]).next_step().regularized
    # What other machines train at the same time takes none of its time.
    others = [record(n, [9.0] * 8, status=records.RUNNING) for n in (1, 2, 3)]
    enough = plan(seconds=17.0, epochs=1000, regularize=more)
    assert Standing(enough, [leader, *others]).next_step() == again
    # The epochs of the training before do not count.
    inherited = rising(dropout=0.1, inherited_epochs=4)
    assert not Standing(timed, [inherited]).next_step().regularized
    failed = record(1, [], status=records.FAILED, values=more({"dropout": 0.1}))
    assert not Standing(timed, [leader, failed]).next_step().regularized
    # Before it rises, the loss may be far above that of training; of the first run.
    for falling in (rising(dropout=0.1), rising(dropout=0.1, inherited_epochs=1)):
        for epoch in falling.epochs:
            epoch["val_loss"] = 2.0 * epoch["score"]
            epoch["loss"] = 1.6 * epoch["score"]
        assert not Standing(timed, [falling]).next_step().regularized
        falling.epochs[-1]["loss"] = 1.4 * falling.epochs[-1]["score"]
        is_first = not falling.inherited_epochs
        assert Standing(timed, [falling]).next_step().regularized == is_first
    # Where it has all but stopped falling, it need not be far above.
    for last, share, stalls in [(1.99, 0.92, 0), (1.99, 0.88, 1), (1.95, 0.88, 0)]:
        flat = record(0, [6.0, 5.0, 4.0, 3.0, 2.0], values={"dropout": 0.1})
        losses = [1.999, 1.998, 1.997, 1.996, last]
        for epoch, loss in zip(flat.epochs, losses, strict=True):
            epoch.update(val_loss=loss, loss=share * loss)
        assert Standing(timed, [flat]).next_step().regularized == stalls
    # One epoch can tell.
    short = record(0, [2.0], values={"dropout": 0.1})
    short.epochs[0].update(val_loss=2.0, loss=1.0)
    assert Standing(timed, [short]).next_step().regularized
    # One whose score has settled has ended.
    settled = record(0, [1.0] * 9, values={"dropout": 0.1})
    for epoch, entry in enumerate(settled.epochs):
        entry["val_loss"] = 1.0 + epoch
    assert Standing(timed, [settled]).next_step() == Step(0)


def test_only_the_leader_pauses_to_be_regularized(tmp_path):
    timed = plan(
        seconds=1000.0, epochs=1000, regularize=lambda values: {"dropout": 0.3}
    )

    def keep(number, score):
        made = record(number, [score] * 6, status=records.RUNNING)
        for epoch, entry in enumerate(made.epochs):
            entry["val_loss"] = 1.0 + epoch
        made.values = {"dropout": 0.1, halving.RUNG: 3}
        made.configuration = None
        made.path = records.folder_of(tmp_path, made.trial_id)
        made.save()
        return made

    leader, other = keep(0, 1.0), keep(1, 2.0)
    assert timed.pauses(3, tmp_path)(leader)
    assert not timed.pauses(3, tmp_path)(other)


def test_what_overfits_learns_both_directions_for_as_many_epochs_again():
    leader = overfitting(dropout=0.1)
    goes_on = {"dropout": 0.3, "tuner/trial_id": "0", halving.RUNG: 3}
    options = {"epochs": 1000, "regularize": lambda values: {"dropout": 0.3}}
    # Where little time is left, for half of it.
    for seconds, until in ((1000.0, 16), (20.0, 14)):
        both = plan(seconds=seconds, bidirectional=True, **options)
        standing = Standing(both, [leader])
        step = standing.next_step()
        assert step == Step(3, "0", regularized=True)
        values = standing.values_to_continue(step)
        assert values == {**goes_on, records.BIDIRECTIONAL_EPOCHS: until}
    later = record(1, [3.0, 2.0, 1.0], values=values)
    for again in (False, True):
        step = Step(3, "1", regularized=again)
        kept = Standing(both, [leader, later]).values_to_continue(step)
        assert kept[records.BIDIRECTIONAL_EPOCHS] == until
    # It gets no better in these epochs, and overfits or has settled after them.
    scores = [3.0 - 0.1 * epoch for epoch in range(8)] + [3.0] * 30
    for count, settles in ((14, False), (21, False), (22, True)):
        later = record(1, scores[:count], values=values)
        for entry in later.epochs:
            entry["val_loss"] = entry["score"]
        assert runs.has_plateaued(later) == settles
        assert runs.has_overfit(later) == (count > until + runs.RISING)
    own = Standing(plan(seconds=1000.0, **options), [leader])
    assert own.values_to_continue(own.next_step()) == goes_on


def test_a_plan_regularizes_all_that_a_space_has():
    hp = keras_tuner.HyperParameters()
    hp.Choice("kind", ["plain", "dropping"])
    with hp.conditional_scope("kind", ["dropping"]):
        hp.Choice("dropout", [0.0, 0.4])
    leader = overfitting(kind="dropping", dropout=0.0)
    timed = plan(seconds=1000.0, epochs=1000).within(hp)
    standing = Standing(timed, [leader])
    assert standing.values_to_continue(standing.next_step())["dropout"] == 0.4


def test_a_run_that_a_callback_ended_is_not_continued():
    """It counts as it is, also on rungs that it has not reached."""
    over = record(0, [3.0, 1.0], status=records.COMPLETED)
    others = [record(number, [2.0] * 9) for number in (1, 2)]
    standing = Standing(plan(trials=3), [over, *others])
    assert standing.leader is over
    assert standing.next_step() is None
    assert Standing(plan(trials=1), [over]).next_step() is None


def test_what_overfits_goes_on_with_two_copies_of_each_pair():
    """Whose epochs take twice as long."""
    leader = overfitting(dropout=0.1)
    options = {"epochs": 1000, "consistency": 1.0, "bidirectional": True}
    for seconds, until in ((1000.0, 16), (28.0, 13)):
        standing = Standing(plan(seconds=seconds, **options), [leader])
        step = standing.next_step()
        # With them alone where nothing else regularizes more.
        assert step == Step(3, "0", regularized=True)
        values = standing.values_to_continue(step)
        assert values["dropout"] == 0.1
        assert values[records.CONSISTENCY] == 1.0
        assert values[records.BIDIRECTIONAL_EPOCHS] == until
    # Too little time for eight of them.
    short = Standing(plan(seconds=24.0, **options), [leader])
    assert not short.next_step().regularized
    # What goes on from it keeps them, and begins with them once.
    timed = plan(seconds=1000.0, **options)
    later = record(1, [3.0 - 0.1 * epoch for epoch in range(30)], values=values)
    later.continued_from = "0"
    for epoch, entry in enumerate(later.epochs):
        entry["val_loss"] = 1.0 + epoch
    assert runs.has_overfit(later)
    standing = Standing(timed, [leader, later])
    step = standing.next_step()
    assert not step.regularized
    kept = standing.values_to_continue(Step(RUNGS, "1"))
    assert kept[records.CONSISTENCY] == 1.0
    # Where they failed, the run goes on without them.
    later.status = records.OUT_OF_MEMORY
    standing = Standing(timed, [leader, later])
    assert standing.leader is leader
    assert not standing.next_step().regularized


def test_a_leader_that_gets_no_better_leaves_the_time_to_others():
    leader = record(0, [1.0] * 9, seconds=10.0)
    timed = plan(seconds=95.0, epochs=1000)
    assert Standing(timed, [leader]).next_step() == Step(0)
    better = record(1, [0.5] * 9, seconds=9.0)
    assert Standing(timed, [leader, better]).leader is better


def test_a_search_ends_with_the_leader_at_its_last_epoch():
    known = [record(0, [2.0] * 9, best_epoch=9), record(1, [3.0])]
    last = plan(trials=2, epochs=27)
    assert Standing(last, known).next_step() == Step(RUNGS, "0")
    assert Standing(plan(trials=2, epochs=9), known).next_step() is None
    running = [record(0, [2.0], status=records.RUNNING)]
    assert Standing(plan(trials=1), running).next_step() is None
    assert Standing(plan(trials=0), []).next_step() is None


def test_what_failed_is_out():
    known = [record(0, [1.0], status=records.NAN), record(1, [3.0])]
    assert Standing(plan(), known).leader is known[1]


def test_a_study_ends_no_worse_than_its_first_trial(simulated, study):
    found = study(algorithm="halving", epochs=27, max_trials=12)
    known = records.load_records(found.directory)
    trials = [one for one in known if one.continued_from is None]
    assert len(trials) == 12
    assert found.best_score <= trials[0].score
    assert found.best_score < min(one.best_until(1, "min") for one in trials)
    assert max(len(one.epochs) for one in known) == 27
    assert any(one.continued_from for one in known)
    paused = [one for one in trials if one.status == "paused"]
    assert paused
    again = study(algorithm="halving", epochs=27, max_trials=12)
    assert len(records.load_records(again.directory)) == len(known)


def test_nothing_over_budget_is_begun(simulated, study):
    found = study(algorithm="halving", epochs=9, max_trials=5, max_parameters=2600)
    table = found.table()
    begun = table[table["trial"].notna()]
    assert len(begun) >= 5 and (begun["parameters"] <= 2600).all()
    assert (table["status"] == "over budget").any()


def test_a_long_training_has_more_patience():
    scores = [1.0 - epoch / 100 for epoch in range(30)]  # it gets better till the 30th
    assert not runs.has_plateaued(record(0, [*scores, *[9.0] * 29]))
    assert runs.has_plateaued(record(0, [*scores, *[9.0] * 30]))
    assert not runs.has_plateaued(record(0, [*scores[:4], *[9.0] * 7]))
    assert runs.has_plateaued(record(0, [*scores[:4], *[9.0] * 8]))


def test_epochs_that_get_worse_by_chance_end_no_training():
    """Five in a row do, of 120 draws one, and a training has that many epochs."""
    better = [9.0 - epoch / 10 for epoch in range(20)]
    worse = [8.0 + epoch / 10 for epoch in range(5)]
    assert not runs.has_plateaued(record(0, [*better, *worse]))


@pytest.mark.parametrize("dropout", [0.1, 0.3])
@pytest.mark.parametrize("epochs", [[3.0, 2.3], []])
def test_a_continuation_that_failed_leaves_the_trial_before_it(dropout, epochs):
    """Unless it had the same values: it would fail again."""
    first, weak = record(0, [3.0, 2.3]), record(2, [5.0])
    first.values = {"dropout": 0.1}
    failed = record(1, epochs, status=records.OUT_OF_MEMORY)
    failed.values = {"dropout": dropout, "tuner/trial_id": "0"}
    failed.continued_from = "0" if epochs else None
    latest = runs.latest_records([first, failed, weak])
    assert [one.trial_id for one in latest] == (["2"] if dropout == 0.1 else ["0", "2"])


def test_a_run_that_is_resumed_asks_again_where_there_is_more_time(tmp_path):
    made = record(0, [3.0 - 0.01 * i for i in range(60)], status=records.RUNNING)
    made.values, made.configuration = {halving.RUNG: halving.RUNGS}, None  # in place
    made.path = records.folder_of(tmp_path, "0")
    made.save()
    timed = plan(seconds=400.0, epochs=1000)
    assert not timed.pauses(0, tmp_path)(made)
    assert made.values[halving.RUNG] == halving.FIRST_RUNG
