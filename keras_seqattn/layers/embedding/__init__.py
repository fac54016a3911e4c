"""From token ids to vectors with positions, and from vectors to logits."""
