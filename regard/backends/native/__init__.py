"""The C++ kernels of src/native, where this install has them."""
