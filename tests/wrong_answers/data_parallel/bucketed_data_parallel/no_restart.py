"""the second step goes wrong where the first was right

The counters stay where the first step left them.
"""

from tests.wrong_answers.data_parallel.right import BucketedDataParallel


class Wrong(BucketedDataParallel):
    def finish(self) -> None:
        while self.started < len(self.buckets):
            self.start_next()
        for work in self.works:
            work.wait()


bucketed_data_parallel = Wrong
