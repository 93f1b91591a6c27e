"""nothing overlaps

Everything is sent in finish().
"""

from tests.wrong_answers.data_parallel.right import BucketedDataParallel


class Wrong(BucketedDataParallel):
    def gradient_ready(self, i: int) -> None:
        pass


bucketed_data_parallel = Wrong
