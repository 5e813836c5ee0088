"""Alembic's entry: runs the migrations on the connection that the ledger hands over."""

from alembic import context

from day0.ledger import Base

context.configure(connection=context.config.attributes["connection"], target_metadata=Base.metadata)
context.run_migrations()
