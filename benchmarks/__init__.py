"""What is measured, against what, and the inputs for it."""

import os

# Nothing goes on behind a measurement: no command of a benchmark has the disk measured besides.
os.environ.setdefault("FLASHLLM_NO_QUICK_PROFILE", "1")
