"""Runs a function of many items, or several generators, in a few threads."""

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
    """Yields the results of a function of each item, computed in threads, in order.

    Items are taken only as results are: at most `threads` more than were yielded. The
    function runs in the caller's context, and in the caller's thread if `threads` is 1.
    An error for an item is raised after the results of the items before it.
    """
    if threads <= 1:
        yield from map(function, items)
        return
    waiting = collections.deque()
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(threads))
        # A caller that stops taking results does not wait for items not yet begun.
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

    The results of one generator keep their order. The generators run in the caller's
    context. If one of them fails, its error is raised. Then, or when the caller takes
    no more results, the others stop after their current result.
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
