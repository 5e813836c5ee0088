"""The flows and the command line."""
