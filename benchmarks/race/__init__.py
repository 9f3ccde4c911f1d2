"""The race: this package and what a user could pick instead, side by side, in one run, on the same work."""
