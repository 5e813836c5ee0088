"""Fetching a release, or taking a folder as it lies, and checking every byte and header of it."""
