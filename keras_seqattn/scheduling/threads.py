"""A few things at a time: a function of many, or generators."""

import collections
import contextlib
import contextvars
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def in_threads(
    function: Callable[[Any], Any], items: Iterable[Any], threads: int
) -> Iterator[Any]:
    """Computes a function of each item in threads; yields the results in their order.

    Items are taken as results are: at most `threads` more of them than were yielded.

    Args:
        function: Function of one item; it runs in the context of the caller.
        items: Iterable.
        threads: Number of threads; up to 1: the caller's own.

    Yields:
        The results.

    Raises:
        BaseException: What `function` raised for the next item, after those before it.

    Example:
        >>> list(in_threads(len, ["a", "bc", ""], threads=2))
        [1, 2, 0]
    """
    if threads <= 1:
        yield from map(function, items)
        return
    waiting = collections.deque()
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(threads))
        # Who stops taking results does not wait for what has not begun.
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        for item in items:
            context = contextvars.copy_context()
            waiting.append(pool.submit(context.run, function, item))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def run_together(generators: Iterable[Iterator[Any]]) -> Iterator[Any]:
    """Runs each generator in a thread of its own; yields all results as they come.

    They stop after their present result when one of them fails, or nobody takes results
    any more.

    Args:
        generators: Iterable of generators; they run in the context of the caller.

    Yields:
        Their results, those of each in its order.

    Raises:
        BaseException: What the first of them raised.

    Example:
        >>> sorted(run_together([iter([1, 2]), iter([3])]))
        [1, 2, 3]
    """
    generators = list(generators)
    results, over, stopped = queue.SimpleQueue(), object(), threading.Event()

    def run(generator: Iterator[Any]) -> None:
        try:
            for result in generator:
                results.put((result, None))
                if stopped.is_set():
                    return
            results.put((over, None))
        except BaseException as error:
            results.put((over, error))

    with ThreadPoolExecutor(len(generators)) as pool:
        try:
            for generator in generators:
                pool.submit(contextvars.copy_context().run, run, generator)
            running = len(generators)
            while running:
                result, error = results.get()
                if error is not None:
                    raise error
                if result is over:
                    running -= 1
                else:
                    yield result
        finally:
            stopped.set()
