"""What stages hand to each other: one file per artifact type."""
