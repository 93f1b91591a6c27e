"""Answers to `grid_communicators`."""

from mpi4py import MPI

from parlab_staff.answers import Answers

answers = Answers("grid_communicators")

POSITION = "row, column = divmod(comm.rank, columns)"
ROW, COLUMN = "comm.Split(row, column)", "comm.Split(column, row)"
RETURN = f"return {ROW}, {COLUMN}"

answers.edit("swapped", "colors_and_keys_swapped", (RETURN, f"return {COLUMN}, {ROW}"))
answers.edit("other_order", "last_column_first", (ROW, "comm.Split(row, -column)"))
answers.edit("other_order", "last_row_first", (COLUMN, "comm.Split(column, -comm.rank)"))
answers.edit("other_order", "number_from_the_end", (ROW, "comm.Split(row, comm.size - comm.rank)"))
answers.edit("same_twice", "one_for_both", (RETURN, f"row = {ROW}\n    return row, row"))
answers.edit("all_ranks", "duplicates", (RETURN, "return comm.Dup(), comm.Dup()"))
answers.edit("all_ranks", "one_color_for_all_columns", (COLUMN, "comm.Split(0, row)"))
answers.edit("swapped", "divided_by_the_rows", (POSITION, "row, column = divmod(comm.rank, rows)"))
answers.edit("swapped", "numbered_by_columns", (POSITION, "column, row = divmod(comm.rank, rows)"))
answers.edit(None, "a_column_of_its_own", (COLUMN, "comm.Split(comm.rank, 0)"))
answers.edit("returns_none", "nothing_returned", (RETURN, f"{ROW}, {COLUMN}"))
answers.edit(None, "only_the_row", (RETURN, f"return {ROW}"), says="not return a pair")
answers.edit(None, "numbers", (RETURN, "return row, column"), says="the row communicator is")
answers.edit(
    None,
    "freed",
    (RETURN, f"made = {ROW}, {COLUMN}\n    made[1].Free()\n    return made"),
    says="the column communicator is MPI.COMM_NULL",
)
answers.edit(
    None,
    "first_row_only",
    (ROW, "comm.Split(0 if row == 0 else MPI.UNDEFINED, column)"),
    says="the row communicator is MPI.COMM_NULL",
)
answers.edit("lab_communicator", "world", (ROW, "MPI.COMM_WORLD.Split(row, column)"))
answers.edit(
    "other_order",
    "the_labs_rank",
    ("def grid", "from parlab.rank import rank\n\n\ndef grid"),
    (POSITION, "row, column = divmod(rank, columns)"),
    says="reads the global `rank`",
)
answers.edit("not_freed", "of_a_duplicate", (POSITION, f"comm = comm.Dup()\n    {POSITION}"))
answers.edit(
    "not_freed",
    "of_a_grid",
    (
        RETURN,
        "grid = comm.Create_cart([rows, columns])\n"
        "    return grid.Sub([False, True]), grid.Sub([True, False])",
    ),
)


@answers.wrong("not_new")
def the_whole_is_a_row(rows, columns, comm):
    row, column = divmod(comm.rank, columns)
    return comm if rows == 1 else comm.Split(row), comm.Split(column)


@answers.wrong("not_new", says="`MPI.COMM_SELF`")
def one_rank_is_comm_self(rows, columns, comm):
    row, column = divmod(comm.rank, columns)
    of_row = comm.Split(row, column) if columns > 1 else MPI.COMM_SELF
    return of_row, comm.Split(column, row) if rows > 1 else MPI.COMM_SELF


@answers.wrong("raises")
def only_the_first_row_splits(rows, columns, comm):
    row, column = divmod(comm.rank, columns)
    if row == 0:
        of_row = comm.Split(row, column)
    of_column = comm.Split(column, row)
    return of_row, of_column


answers.right_edit("in_order_of_the_rank", (ROW, "comm.Split(row, comm.rank)"))
answers.right_edit("keys_left_out", (ROW, "comm.Split(row)"), (COLUMN, "comm.Split(column)"))
answers.right_edit("as_a_list", (RETURN, f"return [{ROW}, {COLUMN}]"))


@answers.right
def column_first(rows, columns, comm):
    of_column = comm.Split(color=comm.rank % columns, key=comm.rank // columns)
    of_row = comm.Split(color=100 + comm.rank // columns, key=10 * comm.rank)
    return of_row, of_column


@answers.right
def one_row_after_another(rows, columns, comm):
    """Make one communicator at a time, as PyTorch's `new_group` does."""
    row, column = divmod(comm.rank, columns)
    of_rows = [comm.Split(0 if row == r else MPI.UNDEFINED, column) for r in range(rows)]
    of_columns = [comm.Split(0 if column == c else MPI.UNDEFINED, row) for c in range(columns)]
    return of_rows[row], of_columns[column]


@answers.right
def from_lists_of_ranks(rows, columns, comm):
    row, column = divmod(comm.rank, columns)
    in_row = [row * columns + c for c in range(columns)]
    in_column = [r * columns + column for r in range(rows)]
    return tuple(comm.Create_group(comm.group.Incl(ranks)) for ranks in (in_row, in_column))


@answers.right
def on_a_grid_that_is_freed(rows, columns, comm):
    grid = comm.Create_cart([rows, columns])
    row, column = grid.Sub([False, True]), grid.Sub([True, False])
    grid.Free()
    return row, column
