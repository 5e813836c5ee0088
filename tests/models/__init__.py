"""The small models that tests and the demo use, laid out as releases."""
