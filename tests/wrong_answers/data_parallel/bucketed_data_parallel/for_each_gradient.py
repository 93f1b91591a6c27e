"""A bucket is sent once, when the last of its gradients is ready

Each gradient that is ready sends its whole bucket.
"""

import torch.distributed as dist

from tests.wrong_answers.data_parallel.right import BucketedDataParallel


class Wrong(BucketedDataParallel):
    def gradient_ready(self, i: int) -> None:
        work = dist.all_reduce(self.buffers[i], group=self.group, async_op=True)
        self.works.append(work)


bucketed_data_parallel = Wrong
