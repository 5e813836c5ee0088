"""Importing this brings the device to a process, as a vendor's package does: `modules` of a measurement names it."""

from tasks.operators.simulated.device import open_device

device = open_device()
