"""`python -m benchmarks`: decoding with the demo, the benchmark that needs nothing else."""

import sys

from benchmarks.decode import main

sys.exit(main())
