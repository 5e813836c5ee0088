"""The deliverable: how to run the model, hashes of everything used, and the evidence, in a folder and on one page."""
