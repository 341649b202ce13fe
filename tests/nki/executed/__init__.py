"""Kernels that the library printed, executed on the numpy model and compared with its simulator and with dense attention."""
