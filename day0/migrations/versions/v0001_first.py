"""The first tables: runs, their stages, artifacts, and the releases that the watcher has seen."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "runs",
        sa.Column("id", sa.String(200), primary_key=True),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("target", sa.String(100), nullable=False),
        sa.Column("request", sa.JSON, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("revision", sa.String(100), nullable=False),
        sa.Column("verdict", sa.String(20)),
        sa.Column("rung", sa.String(20), nullable=False),
        sa.Column("error", sa.Text),
        sa.Column("recipe", sa.Text),
        sa.Column("started", sa.DateTime, nullable=False),
        sa.Column("updated", sa.DateTime, nullable=False),
    )
    op.create_table(
        "artifacts",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("key", sa.String(300), nullable=False),
        sa.Column("stage", sa.String(50), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("verdict", sa.String(20), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("inputs", sa.JSON, nullable=False),
        sa.Column("settings", sa.JSON, nullable=False),
        sa.Column("versions", sa.JSON, nullable=False),
        sa.Column("tree", sa.Text),
        sa.Column("stats", sa.JSON, nullable=False),
        sa.Column("seconds", sa.Double, nullable=False),
        sa.Column("created", sa.DateTime, nullable=False),
        sa.Column("superseded", sa.Text),
    )
    op.create_index("ix_artifacts_key", "artifacts", ["key"])
    op.create_index("ix_artifacts_digest", "artifacts", ["digest"])
    op.create_table(
        "stage_runs",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("run_id", sa.String(200), sa.ForeignKey("runs.id"), nullable=False),
        sa.Column("stage", sa.String(50), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("verdict", sa.String(20)),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("exit_code", sa.Integer, nullable=False),
        sa.Column("artifact_id", sa.Integer, sa.ForeignKey("artifacts.id")),
        sa.Column("cached", sa.Boolean, nullable=False),
        sa.Column("seconds", sa.Double, nullable=False),
        sa.Column("log", sa.Text),
        sa.Column("started", sa.DateTime, nullable=False),
        sa.Column("pid", sa.Integer),
    )
    op.create_index("ix_stage_runs_run_id", "stage_runs", ["run_id"])
    op.create_table(
        "seen",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("source", sa.String(500), nullable=False),
        sa.Column("revision", sa.String(100), nullable=False),
        sa.Column("target", sa.String(100), nullable=False),
        sa.Column("run_id", sa.String(200)),
        sa.Column("created", sa.DateTime, nullable=False),
        sa.UniqueConstraint("source", "revision", "target"),
    )


def downgrade() -> None:
    for table in ("seen", "stage_runs", "artifacts", "runs"):
        op.drop_table(table)
