"""Worlds in the jobs of PBS, Grid Engine and LSF: ipyparallel's launchers submit the job, and ssh reaches its hosts."""
