"""Launches the engine on the resharded files and proves that it answers."""
