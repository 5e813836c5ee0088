"""Where each rank's part of a tensor stands: in which file, under which name, joined with what."""
