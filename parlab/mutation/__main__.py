"""`python -m parlab.mutation`: see the docstring of `parlab.mutation`."""

import sys

from parlab.mutation.command import main

sys.exit(main())
