"""Set the clock of every process that starts with this folder in PYTHONPATH wrong.

``WORKER_CLOCK`` is the number of days. Libraries keep ``time.time`` when they are imported, so it
has to be replaced before: two clocks in a process would let its event loop wait for days.
"""

import os
import time

AHEAD = float(os.environ.get("WORKER_CLOCK", "0")) * 86400

if AHEAD:
    right = time.time
    time.time = lambda: right() + AHEAD
