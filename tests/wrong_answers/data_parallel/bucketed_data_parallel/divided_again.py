"""divided by the number of ranks once too often

The loss has its weight, and the sum is divided as well.
"""

from tests.wrong_answers.data_parallel.right import BucketedDataParallel


class Wrong(BucketedDataParallel):
    def finish(self) -> None:
        super().finish()
        for buffer in self.buffers:
            buffer /= self.group.size()


bucketed_data_parallel = Wrong
