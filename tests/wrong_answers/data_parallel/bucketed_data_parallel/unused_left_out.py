"""finish() must start the buckets that are left

The bucket of the unused parameter is never sent.
"""

from tests.wrong_answers.data_parallel.right import BucketedDataParallel


class Wrong(BucketedDataParallel):
    def finish(self) -> None:
        for work in self.works:
            work.wait()
        self.restart()


bucketed_data_parallel = Wrong
