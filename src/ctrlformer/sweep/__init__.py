"""Many runs: which comes when, and where it is trained; in this process, in others beside it, or on a Ray cluster.

`schedule.py` decides, an executor trains: `in_process.py`, `processes.py` or `ray_cluster.py`, which alone imports
ray. `worker.py` is one run in a process of its own, the same everywhere; `view.py` shows all of them at once.
"""
