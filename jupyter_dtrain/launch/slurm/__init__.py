"""Worlds in Slurm: a job of their own, submitted from a login node, or the job in which the notebook runs."""
