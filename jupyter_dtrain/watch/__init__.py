"""The parent process of the ranks of one host: it forks them, knows how they end, and dies with its lease."""
