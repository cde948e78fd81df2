"""What runs on the GPU: one kernel a file, and what they share. Importing them needs Triton."""
