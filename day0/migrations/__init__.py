"""Alembic's migrations of the ledger: a change of its tables is a new file in versions/, never an edit of an old one."""
