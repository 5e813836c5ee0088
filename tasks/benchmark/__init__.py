"""Measures a served model: TTFT, TPOT, ITL and throughput, under named loads, against the memory roofline."""
