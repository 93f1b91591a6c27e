"""Answers to `assign_buckets`."""

from parlab_staff.answers import Answers

answers = Answers("assign_buckets")

TRAINABLE = "[p for p in model.parameters() if p.requires_grad]"
FULL = "if not buckets or size + bytes_more > bucket_bytes:"
BYTES = "parameter.numel() * parameter.element_size()"
REVERSED = f"reversed({TRAINABLE})"


def trainable_of(model):
    return [p for p in model.parameters() if p.requires_grad]


answers.edit(None, "closed_late", (FULL, "if not buckets or size > bucket_bytes:"), says="exceeds")
answers.edit("elements", "elements", (BYTES, "parameter.numel()"))
answers.edit(
    None,
    "width_of_the_first",
    (BYTES, "parameter.numel() * next(model.parameters()).element_size()"),
    says="float32 and float64",
)
answers.edit("exact_fit", "exact_fit", ("> bucket_bytes", ">= bucket_bytes"))
answers.edit("forward_order", "forward_order", (REVERSED, TRAINABLE))
answers.edit(
    "tied_twice",
    "tied_twice",
    (
        TRAINABLE,
        "[p for _, p in model.named_parameters(remove_duplicate=False) if p.requires_grad]",
    ),
)
answers.edit("frozen", "with_frozen", (TRAINABLE, "list(model.parameters())"))
answers.edit(None, "empty_bucket", ("= []\n    size", "= [[]]\n    size"), says="is empty")
answers.edit(None, "last_lost", ("return buckets", "return buckets[:-1]"), says="the buckets hold")
answers.edit("returns_none", "no_return", ("return buckets", "pass"))
answers.edit("wrong_type", "names", ("append(parameter)", "append(str(parameter.shape))"))
answers.edit("wrong_type", "one_list", ("return buckets", "return [p for b in buckets for p in b]"))
answers.edit(None, "size_not_reset", ("            size = 0\n", ""), says="both fit")


@answers.wrong(None, says="requires_grad is True")
def frees_the_frozen(model, bucket_bytes):
    buckets = answers.reference()(model, bucket_bytes)
    model.requires_grad_(True)
    return buckets


@answers.right
def by_nbytes(model, bucket_bytes):
    buckets, room = [], None
    for p in trainable_of(model)[::-1]:
        if room is None or p.nbytes > room:
            buckets.append([])
            room = bucket_bytes
        buckets[-1].append(p)
        room -= p.nbytes
    return buckets


@answers.right
def last_bucket_kept_apart(model, bucket_bytes):
    done, current = [], []
    for p in reversed(trainable_of(model)):
        if current and sum(q.nbytes for q in current) + p.nbytes > bucket_bytes:
            done.append(current)
            current = []
        current.append(p)
    return [*done, current]


@answers.right
def recursive(model, bucket_bytes):
    def cut(parameters):
        if not parameters:
            return []
        end, size = 1, parameters[0].nbytes
        while end < len(parameters) and size + parameters[end].nbytes <= bucket_bytes:
            size += parameters[end].nbytes
            end += 1
        return [parameters[:end], *cut(parameters[end:])]

    return cut(trainable_of(model)[::-1])


@answers.right
def with_empty_ones_dropped(model, bucket_bytes):
    buckets = [[]]
    for p in reversed(trainable_of(model)):
        if sum(q.numel() * q.itemsize for q in [*buckets[-1], p]) > bucket_bytes:
            buckets.append([])
        buckets[-1].append(p)
    return [bucket for bucket in buckets if bucket]


@answers.right
def over_names(model, bucket_bytes):
    buckets, names = [], [name for name, p in model.named_parameters() if p.requires_grad]
    for parameter in map(model.get_parameter, reversed(names)):
        held = sum(p.nbytes for p in buckets[-1]) if buckets else bucket_bytes
        if held + parameter.nbytes > bucket_bytes:
            buckets += [[]]
        buckets[-1] += [parameter]
    return buckets
