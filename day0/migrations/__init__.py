"""Alembic's migrations of the ledger. A change of its tables is a new file in versions/; none is ever edited."""
