"""Formulas for the costs of training in bytes, seconds, and FLOP, before anything runs.

collectives     messages and collectives in the α–β model, algorithm by algorithm
algorithms      the fastest algorithm of each collective at each size, with a cost for each call
networks        nodes with fast links inside and slower ones between
data_parallel   a training step on many ranks: traffic, time, efficiency
zero            ZeRO's stages: bytes by kind, traffic, prefetch, offload
tensor_parallel a layer on several ranks: activations, traffic, time
pipeline_parallel stages on several ranks: idle time, activations, messages
all_to_all      context parallelism and experts: messages and bytes
recomputation   plans of recomputation: the peak and the FLOPs of a chain of segments
composing       data, tensor, and pipeline parallelism in the same step; Megatron's Table 1
splits          all kinds of parallelism for the same training step
mixed_precision bytes of a recipe; numbers that a format loses; the error of a sum over ranks
memory          recomputation, offload, logits, a whole step in less memory; the loader
optimizers      bytes of optimizer states, from the shapes of the parameters
kernels         bytes and arithmetic of a kernel; roofline, sectors, tiles

Sizes are in bytes and times in seconds. Both are floats, because formulas do not round to whole
messages.
"""
