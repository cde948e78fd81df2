"""What has not met its hardware or its users yet: GPU kernels, ring attention, cache eviction.

`regard` never imports it; it finds the backends by entry points where this is installed.
"""
