"""`python -m parlab_staff.mutants`: see the docstring of `parlab_staff.mutants`."""

import sys

from parlab_staff.mutants.command import main

sys.exit(main())
