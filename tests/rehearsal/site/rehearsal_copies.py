"""Deep copies and pickles of CUDA tensors, because torch's own versions need its CUDA storages."""

import copy
import functools

import torch as torch_module


def change(torch, own):
    """Replace the functions that copy, pickle, and resize CUDA tensors."""
    resize, reduce_ex = torch.UntypedStorage.resize_, torch.Tensor.__reduce_ex__
    deepcopy = torch.Tensor.__deepcopy__

    def resize_storage(self, size):
        if self.device.type != "cuda":
            return resize(self, size)
        view = torch.empty(0, dtype=torch.uint8, device=self.device).set_(self)
        own.resize_storage(view, size)
        return self

    @functools.wraps(reduce_ex)
    def cuda_reduce_ex(self, protocol):
        if self.device.type != "cuda":
            return reduce_ex(self, protocol)
        arguments = self.detach().cpu(), str(self.device), kind_of(self), self.requires_grad
        return rebuilt, arguments

    @functools.wraps(deepcopy)
    def cuda_deepcopy(self, memo):
        if self.device.type != "cuda":
            return deepcopy(self, memo)
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user support the deepcopy protocol"
            )
        made = rebuilt(self.detach().cpu(), self.device, kind_of(self), self.requires_grad)
        if self.grad is not None:
            made.grad = copy.deepcopy(self.grad, memo)
        memo[id(self)] = made
        return made

    torch.UntypedStorage.resize_ = resize_storage
    torch.Tensor.__reduce_ex__ = cuda_reduce_ex
    torch.Tensor.__deepcopy__ = cuda_deepcopy


def kind_of(tensor):
    """Return the class of a copy of this tensor."""
    parameter = torch_module.nn.Parameter
    return parameter if isinstance(tensor, parameter) else torch_module.Tensor


def rebuilt(host, device, kind, requires_grad):
    """Return a CUDA tensor with the numbers of a tensor on the host."""
    made = host.to(device)
    if kind is torch_module.nn.Parameter:
        return torch_module.nn.Parameter(made, requires_grad)
    return made.requires_grad_(requires_grad)
