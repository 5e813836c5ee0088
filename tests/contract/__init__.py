"""The stage contract, on Prefect's real server."""
