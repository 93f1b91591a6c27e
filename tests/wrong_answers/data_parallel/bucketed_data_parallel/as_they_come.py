"""bucket 1 must wait until bucket 0 has started

Buckets start in the order in which they are complete.
"""

import torch.distributed as dist

from tests.wrong_answers.data_parallel.right import BucketedDataParallel


class Wrong(BucketedDataParallel):
    def restart(self) -> None:
        super().restart()
        self.sent: set[int] = set()

    def start(self, i: int) -> None:
        self.sent.add(i)
        self.works.append(dist.all_reduce(self.buffers[i], group=self.group, async_op=True))

    def gradient_ready(self, i: int) -> None:
        self.missing[i] -= 1
        if self.missing[i] == 0:
            self.start(i)

    def finish(self) -> None:
        for i in range(len(self.buckets)):
            if i not in self.sent:
                self.start(i)
        for work in self.works:
            work.wait()
        self.restart()


bucketed_data_parallel = Wrong
