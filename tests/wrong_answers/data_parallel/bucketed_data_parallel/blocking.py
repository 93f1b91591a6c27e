"""async_op=True returns a handle

The backward pass waits for each bucket.
"""

import torch.distributed as dist

from tests.wrong_answers.data_parallel.right import BucketedDataParallel


class Wrong(BucketedDataParallel):
    def start_next(self) -> None:
        dist.all_reduce(self.buffers[self.started], group=self.group)
        self.started += 1


bucketed_data_parallel = Wrong
