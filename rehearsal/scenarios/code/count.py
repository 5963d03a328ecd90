"""Counts, in a container, and keeps its count. It knows nothing of who runs it."""

import os
import signal
import sys
import time
from pathlib import Path

END = 600
place = Path(os.environ["CHECKPOINT_DIR"], f"count-{os.environ['WORKER_ID']}")
count = int(place.read_text()) if place.exists() else 0


def save(*_: object) -> None:
    """Keep the count; exit if a signal called."""
    place.with_suffix(".new").write_text(str(count))
    place.with_suffix(".new").replace(place)
    print(f"saved {count}", flush=True)
    if _:
        sys.exit(128 + signal.SIGTERM)


signal.signal(signal.SIGTERM, save)
began = f"resumed at {count}" if count else "from the beginning"
inside = "on the host" if Path("/opt/tpu").exists() else "in a container"
print(
    f"{inside}, worker {os.environ['WORKER_ID']} of {os.environ['WORKER_COUNT']}, {os.environ['GREETING']}; {began}"
)
while count < END:
    time.sleep(0.1)
    count += 1
    if count % 50 == 0:
        save()
print(f"counted to {count}")
