"""A base class for process groups in Python that stores the name and description set by C++."""

import torch.distributed as dist


class NamedGroup(dist.ProcessGroup):
    """Defines the methods that C++ calls on a group without a backend in C++."""

    backend_name = ""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._name = self._description = ""

    def getBackendName(self) -> str:
        return self.backend_name

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupName(self) -> str:
        return self._name

    def setGroupDesc(self, description: str) -> None:
        self._description = description

    def getGroupDesc(self) -> str:
        return self._description
