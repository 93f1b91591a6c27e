import sys

from parlab.authoring import main

sys.exit(main())
