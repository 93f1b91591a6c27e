"""The engine of one rank: started, looked into, freed when it is stuck, made usable again.

`supervisor` is the rank's parent process; all else runs inside the rank. Learners import nothing
from here: what they use is in `parlab.rank`.
"""

DAMAGE = "parlab_damage"  # under this name a rank publishes what a cell broke: `damage`
