"""Variants of kernels, faulty and honest, and how acceptance takes each."""
