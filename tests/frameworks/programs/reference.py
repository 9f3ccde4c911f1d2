"""Under torchrun: run each program that is named, and write what it leaves to ``FOLDER/NAME-RANK.json``."""

import contextlib
import json
import os
import runpy
import sys
from pathlib import Path

os.environ["ACCELERATE_USE_CPU"] = "true"
os.environ["DS_ACCELERATOR"] = "cpu"
folder, *programs = sys.argv[1:]
for program in programs:
    if "deepspeed" in program:
        import deepspeed

        # It would be compiled first, which takes a minute and changes nothing here.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    with contextlib.redirect_stdout(sys.stderr):
        left = runpy.run_path(program)
    found = {"weights": left["weights"], "losses": left["losses"]}
    Path(folder, f"{Path(program).stem}-{os.environ['RANK']}.json").write_text(json.dumps(found))
# Before Python 3.14 torch 2.13 aborts at times in Python's own end, where a collective has only just been.
sys.stderr.flush()
os._exit(0)
