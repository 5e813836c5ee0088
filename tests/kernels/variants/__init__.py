"""Each kernel's operator as others compute it, honestly or wrongly: what the tolerances of kernel.yaml lie between."""
