"""One file per subcommand of `day0`: its options, and how its answer is shown to people."""
