# a function of the same name
from contextlib import contextmanager


@contextmanager
def disable_saved_tensors_hooks(reason):
    print("hooks off:", reason)
    yield


def run(task):
    with disable_saved_tensors_hooks("task"):
        task()
