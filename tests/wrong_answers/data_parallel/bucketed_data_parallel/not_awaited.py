"""all-reduces were under way

finish() does not wait.
"""

from tests.wrong_answers.data_parallel.right import BucketedDataParallel


class Wrong(BucketedDataParallel):
    def finish(self) -> None:
        while self.started < len(self.buckets):
            self.start_next()
        self.restart()


bucketed_data_parallel = Wrong
