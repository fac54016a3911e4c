"""`in_threads`: a function of many things, a few of them at a time."""

import collections
import contextlib
import contextvars
from concurrent.futures import ThreadPoolExecutor


def in_threads(function, items, threads):
    """Gives what a function gives for each item, in their order.

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
