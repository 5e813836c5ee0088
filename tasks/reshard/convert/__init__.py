"""Conversions of weights while they are resharded: out of quantised formats, into them, and between them.

Every conversion works on blocks of its first input and on as many threads as one likes; what comes out does not depend
on how the tensor was cut into blocks. registry.py is the way in and lists the names. A conversion is a decoder
(decoders.py: stored bytes to FP32) and an encoder (encoders.py: FP32 to what is written) over small tiles
(pipeline.py), with compiled loops (kernels.py); what only moves or renames bytes is in bytewise.py. Nothing here
imports torch, and numba is imported only when a conversion is made.
"""
