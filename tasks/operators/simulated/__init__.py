"""A simulated accelerator, for rehearsals and tests: a device of torch with chosen operators missing, wrong or slow."""
