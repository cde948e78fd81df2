"""Training a GPT: corpus, batches, updates, checkpoints, several processes, the loop."""
