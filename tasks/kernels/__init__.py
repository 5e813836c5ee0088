"""Kernels: what a target lacks, met by kernels that are built and accepted for it."""
