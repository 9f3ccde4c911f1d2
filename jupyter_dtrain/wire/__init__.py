"""How the parts reach each other: messages, channels, questions, spools. Knows no framework and no process."""
