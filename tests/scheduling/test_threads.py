import contextvars
import itertools
import threading
import time

import pytest

from keras_seqattn.scheduling.threads import in_threads, run_together

pytestmark = pytest.mark.backends("torch")


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_results_come_in_order(threads):
    """Every other item waits for the next one, if there is a thread for that."""
    begun = [threading.Event() for _ in range(7)]

    def wait(item):
        begun[item].set()
        if threads > 1 and item % 2 == 0 and item + 1 < len(begun):
            assert begun[item + 1].wait(timeout=60.0)
        return 10 * item

    found = in_threads(wait, range(len(begun)), threads)
    assert list(found) == [0, 10, 20, 30, 40, 50, 60]


@pytest.mark.parametrize("threads", [1, 2])
def test_items_are_taken_as_results_are(threads):
    taken = []

    def items():
        for item in range(100):
            taken.append(item)
            yield item

    found = in_threads(str, items(), threads)
    assert next(found) == "0"
    assert len(taken) <= 1 + threads
    found.close()
    assert len(taken) <= 1 + threads


@pytest.mark.parametrize("threads", [1, 2])
def test_an_error_comes_where_its_result_would(threads):
    found = in_threads(lambda item: 6 // item, [3, 2, 0, 1], threads)
    assert [next(found), next(found)] == [2, 3]
    with pytest.raises(ZeroDivisionError):
        next(found)


def test_the_caller_s_context_is_seen():
    variable = contextvars.ContextVar("variable", default="none")
    token = variable.set("set")
    try:
        seen = list(in_threads(lambda _: variable.get(), range(3), threads=2))
        getters = ((variable.get() for _ in range(1)) for _ in range(2))
        seen += run_together(getters)
    finally:
        variable.reset(token)
    assert seen == ["set"] * 5


def test_generators_run_side_by_side():
    """Each waits for the other."""
    first, second = threading.Event(), threading.Event()

    def one():
        yield 1
        assert second.wait(timeout=60.0)
        yield 2
        first.set()

    def other():
        second.set()
        assert first.wait(timeout=60.0)
        yield 3

    assert list(run_together([one(), other()])) == [1, 2, 3]


def numbers(until):
    """Counts to a time at which a test has failed, which would else not end."""
    for number in itertools.count():
        if time.monotonic() > until:
            return
        yield number
        time.sleep(0.001)


def test_a_generator_s_error_ends_all():
    until = time.monotonic() + 10.0
    with pytest.raises(ZeroDivisionError):
        for _ in run_together([numbers(until), (1 // 0 for _ in range(1))]):
            pass
    assert time.monotonic() < until


def test_generators_stop_when_nobody_takes_results():
    closed, until = threading.Event(), time.monotonic() + 10.0

    def endless():
        try:
            yield from numbers(until)
        finally:
            closed.set()

    found = run_together([endless()])
    assert next(found) == 0
    found.close()
    assert closed.wait(timeout=60.0)
    assert time.monotonic() < until
