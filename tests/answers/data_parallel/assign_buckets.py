"""Answers to `assign_buckets`."""

from parlab.answers import Answers

answers = Answers("assign_buckets")

TRAINABLE = "[p for p in model.parameters() if p.requires_grad]"
FULL = "if not buckets or size + bytes_more > bucket_bytes:"
BYTES = "parameter.numel() * parameter.element_size()"
REVERSED = f"reversed({TRAINABLE})"


def trainable_of(model):
    return [p for p in model.parameters() if p.requires_grad]


answers.edit("over_the_limit", "closed_too_late", (FULL, "if not buckets or size > bucket_bytes:"))
answers.edit(
    "over_the_limit",
    "closed_when_full",
    (FULL, "if not buckets or size >= bucket_bytes:"),
)
answers.edit(
    "forward_inside", "forward_inside", ("return buckets", "return [b[::-1] for b in buckets]")
)
answers.edit("elements", "elements", (BYTES, "parameter.numel()"))
answers.edit(
    "one_width",
    "width_of_the_first",
    (BYTES, "parameter.numel() * next(model.parameters()).element_size()"),
)
answers.edit(
    None,
    "eight_bytes",
    (BYTES, "parameter.numel() * 8"),
    says="for bucket_bytes",
)
answers.edit("exact_fit", "exact_fit", ("> bucket_bytes", ">= bucket_bytes"))
answers.edit("forward_order", "forward_order", (REVERSED, TRAINABLE))
answers.edit(
    "buckets_reversed",
    "buckets_reversed",
    (REVERSED, TRAINABLE),
    ("return buckets", "return buckets[::-1]"),
)
answers.edit(
    "tied_twice",
    "tied_twice",
    (
        TRAINABLE,
        "[p for _, p in model.named_parameters(remove_duplicate=False) if p.requires_grad]",
    ),
)
answers.edit("frozen", "with_frozen", (TRAINABLE, "list(model.parameters())"))
answers.edit("empty_bucket", "starts_with_an_empty_one", ("= []\n    size", "= [[]]\n    size"))
answers.edit("left_out", "last_bucket_lost", ("return buckets", "return buckets[:-1]"))
answers.edit("returns_none", "no_return", ("return buckets", "pass"))
answers.edit("wrong_type", "names", ("append(parameter)", "append(str(parameter.shape))"))
answers.edit("wrong_type", "gradients", ("append(parameter)", "append(parameter.grad)"))
answers.edit("wrong_type", "one_list", ("return buckets", "return [p for b in buckets for p in b]"))
answers.edit(
    "joined_large",
    "large_not_counted",
    ("size += bytes_more", "size += bytes_more if bytes_more <= bucket_bytes else 0"),
)
answers.edit(None, "size_not_reset", ("            size = 0\n", ""), says="for bucket_bytes")
answers.edit(
    None,
    "first_not_counted",
    ("size += bytes_more", "size += bytes_more if len(buckets[-1]) > 1 else 0"),
    says="for bucket_bytes",
)


@answers.wrong("gaps_filled")
def first_fit(model, bucket_bytes):
    buckets, room = [], []
    for parameter in reversed(trainable_of(model)):
        i = next((i for i, left in enumerate(room) if parameter.nbytes <= left), len(buckets))
        if i == len(buckets):
            buckets.append([])
            room.append(bucket_bytes)
        buckets[i].append(parameter)
        room[i] -= parameter.nbytes
    return buckets


@answers.wrong("requires_grad")
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
def named(model, bucket_bytes):
    left = dict(model.named_parameters())
    buckets, size = [], bucket_bytes + 1
    for name in list(left)[::-1]:
        parameter = left.pop(name)
        if parameter.requires_grad:
            size += parameter.numel() * parameter.element_size()
            if size > bucket_bytes or not buckets:
                buckets += [[]]
                size = parameter.numel() * parameter.element_size()
            buckets[-1] += [parameter]
    return buckets
