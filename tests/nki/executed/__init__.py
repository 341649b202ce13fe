"""Printed kernels executed on the numpy model, compared with the library's simulator and with dense attention."""
