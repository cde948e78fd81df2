"""torch's own fused kernels on CUDA, each called by its name, for the log-sum-exp too.

``torch.nn.functional.scaled_dot_product_attention`` chooses among the same kernels, but says
neither which it took nor what the log-sum-exp was.
"""

from regard_experiments.gpu.fused import cudnn, efficient, flash

__all__ = ["cudnn", "efficient", "flash"]
