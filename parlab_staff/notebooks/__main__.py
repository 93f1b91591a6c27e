import sys

from parlab_staff.notebooks import main

sys.exit(main())
