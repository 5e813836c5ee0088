"""A vendor's module whose driver ends the process."""

import os

os.abort()
