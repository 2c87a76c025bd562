"""`python -m eqco`: the same as the command `eqco`."""

import sys

from eqco.cli.main import main

sys.exit(main())
