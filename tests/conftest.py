"""Before anything imports Prefect: where its server will be, and that nothing is kept in the user's home."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path

from flows.orchestrator import QUIET

with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    PORT = probe.getsockname()[1]

HOME = Path(tempfile.mkdtemp(prefix="day0-tests-"))
os.environ.update(QUIET)
os.environ["DAY0_HOME"] = str(HOME)
os.environ["DAY0_SERVER_PORT"] = str(PORT)
os.environ["PREFECT_HOME"] = str(HOME / "prefect")
os.environ["PREFECT_API_URL"] = f"http://127.0.0.1:{PORT}/api"
os.environ["HF_HUB_OFFLINE"] = ""
