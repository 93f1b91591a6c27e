"""Answers to `embedding_groups`."""

import itertools
import math

from parlab_staff.answers import Answers

answers = Answers("embedding_groups")

GROUP = "sorted({one[0], one[-1]})"
RETURN = "sorted(sorted({one[0], one[-1]}) for one in pipelines.tolist())"
LISTED = "pipelines.tolist()"
REFUSE = 'if "pp" not in mesh:'

answers.edit("whole_pipelines", "all_stages", (GROUP, "one"))
answers.edit(None, "nothing_for_one_stage", (LISTED, "pipelines.tolist() if len(one) > 1"))
answers.edit(
    None,
    "groups_of_one_between",
    (RETURN, "sorted([*({one[0], one[-1]} and sorted({one[0], one[-1]}) for one in "
     "pipelines.tolist()), *([r] for one in pipelines.tolist() for r in one[1:-1])])"),
)  # fmt: skip
answers.edit("not_sorted", "backward", (RETURN, f"{RETURN}[::-1]"))
ONE_STAGE = 'mesh = mesh if "pp" in mesh else {**mesh, "pp": 1}'
answers.edit("not_refused", "no_pipeline_is_one_stage", (REFUSE, f"{ONE_STAGE}\n    {REFUSE}"))
TEXT = """f'the mesh {dict(mesh)} does not have the dimension "pp"'"""
answers.edit(None, "not_named", (TEXT, '"no pipeline"'), says="does not name")
answers.edit(None, "key_error", ("raise ValueError", "raise KeyError"), says="Raise a ValueError")
answers.edit("wrong_type", "tensors", ("pipelines.tolist()", "pipelines"))


@answers.wrong("order_assumed")
def usual_order(mesh):
    if "pp" not in mesh:
        raise ValueError("pp is missing")
    pp, tp = mesh["pp"], mesh.get("tp", 1)
    groups = []
    for start in range(0, math.prod(mesh.values()), pp * tp):
        for shard in range(tp):
            ends = {start + shard, start + (pp - 1) * tp + shard}
            groups.append(sorted(ends))
    return sorted(groups)


@answers.wrong(None)
def three_dimensions_only(mesh):
    if "pp" not in mesh:
        raise ValueError("no pp in the mesh")
    sizes = [mesh.get(dim, 1) for dim in ("dp", "pp", "tp")]
    order = [dim for dim in mesh if dim in ("dp", "pp", "tp")]
    groups = {}
    for rank in range(math.prod(sizes)):
        at, rest = {}, rank
        for dim in reversed(order):
            rest, at[dim] = divmod(rest, mesh[dim])
        if at["pp"] in (0, mesh["pp"] - 1):
            groups.setdefault((at.get("dp"), at.get("tp")), []).append(rank)
    return sorted(groups.values())


@answers.wrong("argument_changed")
def popped(mesh):
    groups = answers.reference()(mesh)
    mesh.pop("pp")
    return groups


@answers.right
def by_stride(mesh):
    """The first and the last stage are (pp - 1) strides apart."""
    if "pp" not in mesh:
        raise ValueError('"pp" is missing')
    dims = list(mesh)
    stride = math.prod(mesh[dim] for dim in dims[dims.index("pp") + 1 :])
    far = (mesh["pp"] - 1) * stride
    firsts = [r for r in range(math.prod(mesh.values())) if r // stride % mesh["pp"] == 0]
    return [[r, r + far] if far else [r] for r in firsts]


@answers.right
def by_coordinates(mesh):
    if mesh.get("pp") is None:
        raise ValueError("a mesh without pp")
    groups, place = {}, list(mesh).index("pp")
    for rank, at in enumerate(itertools.product(*(range(size) for size in mesh.values()))):
        if at[place] == 0 or at[place] == mesh["pp"] - 1:
            groups.setdefault(at[:place] + at[place + 1 :], []).append(rank)
    return list(groups.values())


answers.right_edit("a_list_of_tuples", (RETURN, f"[tuple(group) for group in {RETURN}]"))
