"""Answers to `predict_copies`."""

import math

from parlab_staff.answers import Answers

answers = Answers("predict_copies")

NORM, COLUMN = '"norm": dp * tp', '"column": dp'
EMBEDDING = '"embedding": dp * tp * min(pp, 2)'
NORM_SHARD, COLUMN_SHARD = '"norm_shard": tp', '"column_shard": 1'

answers.edit(None, "norm_of_one_replica", (NORM, '"norm": tp'))
answers.edit("split_counted", "column_on_all_shards", (COLUMN, '"column": dp * tp'))
answers.edit("split_counted", "shard_of_a_shard", (COLUMN_SHARD, '"column_shard": tp'))
answers.edit("every_stage", "norm_on_every_stage", (NORM, '"norm": dp * tp * pp'))
answers.edit("every_stage", "embedding_on_every_stage", ("min(pp, 2)", "pp"))
answers.edit("one_stage_only", "embedding_on_one_stage", (EMBEDDING, '"embedding": dp * tp'))
answers.edit("one_stage_twice", "embedding_always_twice", ("min(pp, 2)", "2"))
answers.edit("not_sharded", "whole_norm", (NORM_SHARD, '"norm_shard": dp * tp'))
answers.edit("not_sharded", "whole_column", (COLUMN_SHARD, '"column_shard": dp'))
answers.edit(None, "in_the_usual_order", ('mesh["dp"], mesh["tp"], mesh["pp"]', "mesh.values()"))
answers.edit(None, "no_column_shard", (f"        {COLUMN_SHARD},\n", ""))


@answers.wrong("argument_changed")
def taken_apart(mesh):
    copies = answers.reference()(mesh)
    mesh.pop("pp")
    return copies


@answers.right
def by_counting(mesh):
    """List what each rank has, and count equal entries."""
    dims = list(mesh)
    held = []
    for rank in range(math.prod(mesh.values())):
        at, rest = {}, rank
        for dim in reversed(dims):
            rest, at[dim] = divmod(rest, mesh[dim])
        held.append(("norm", at["pp"]))
        held.append(("column", at["pp"], at["tp"]))
        if at["pp"] in (0, mesh["pp"] - 1):
            held.append(("embedding",))
        held.append(("norm_shard", at["pp"], at["dp"]))
        held.append(("column_shard", *at.values()))
    firsts = {one[0]: one for one in held}
    return {name: held.count(one) for name, one in firsts.items()}


@answers.right
def by_division(mesh):
    stage = mesh["dp"] * mesh["tp"]
    copies = {"norm": stage, "column": stage // mesh["tp"]}
    shards = {f"{name}_shard": number // mesh["dp"] for name, number in copies.items()}
    return copies | shards | {"embedding": stage * len({0, mesh["pp"] - 1})}


@answers.right
def a_case_for_one_stage(mesh):
    copies = {"norm": mesh["tp"] * mesh["dp"], "column": mesh["dp"]}
    copies["embedding"] = copies["norm"] if mesh["pp"] == 1 else 2 * copies["norm"]
    copies["norm_shard"], copies["column_shard"] = mesh["tp"], 1
    return copies


@answers.right
def floats(mesh):
    return {name: float(number) for name, number in answers.reference()(mesh).items()}


answers.right_edit("more_numbers", (COLUMN_SHARD, f'{COLUMN_SHARD}, "embedding_shard": tp'))
