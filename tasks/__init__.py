"""One folder per stage. `task.py` is its Prefect task; everything else is plain Python without Prefect."""
