"""The engine of one rank: starts it, reports its stack, frees it if it is stuck, and restores it.

`supervisor` runs in the rank's parent process, and all other modules run inside the rank. Learners
import only from `parlab.rank`.
"""

DAMAGE = "parlab_damage"  # the name under which `broken_state` publishes what a cell broke
