"""A lock that someone else holds."""

import contextlib
import threading

from keras_seqattn.files import release_lock, take_lock


@contextlib.contextmanager
def held(lock):
    """Another thread that holds a lock; yields what lets it go."""
    begun, over = threading.Event(), threading.Event()

    def hold():
        assert take_lock(lock) is None
        begun.set()
        over.wait(30)
        release_lock(lock)

    thread = threading.Thread(target=hold, name="other")
    thread.start()
    assert begun.wait(30)
    yield over.set
    over.set()
    thread.join()
