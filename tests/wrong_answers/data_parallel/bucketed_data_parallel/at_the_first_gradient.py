"""it sends what was there before

A bucket starts when the first of its gradients is ready.
"""

from tests.wrong_answers.data_parallel.right import BucketedDataParallel


class Wrong(BucketedDataParallel):
    def gradient_ready(self, i: int) -> None:
        if i == self.started:
            self.start_next()


bucketed_data_parallel = Wrong
