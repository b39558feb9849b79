"""The terminal application: above the engine, whose public names are all that it knows of it.

One thread talks to the engine and posts messages; their handlers own the widgets. Everything that a
model, a checkpoint or a user wrote is sanitized before it is shown, and never read as markup.
"""

import os

# A terminal sends Esc as the first byte of other keys too, so Textual waits for more before it
# takes it for the key, 100 ms if nobody says less. Sequences come in one piece or, through slow
# connections, within a few milliseconds; and Esc stops answers, which should not take long.
os.environ.setdefault("ESCDELAY", "25")
