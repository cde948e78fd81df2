"""Attention on GPUs: torch's fused kernels, FlexAttention, readouts in Triton."""
