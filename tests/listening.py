"""Progress for tests."""

from cehm_dask.progress import Progress


class Advances(Progress):
    """Calls a function with what is done, how much of it and of how much."""

    def __init__(self, call):
        self.call = call

    def advanced(self, what, done, total):
        self.call(what, done, total)
