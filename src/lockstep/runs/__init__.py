"""The folder of a run, which is all that the processes of Lockstep know of each other.

Called, this package lists runs: it stands where users find `lockstep.runs`.
"""

from lockstep.system import faces

faces.call(__name__, "lockstep.python.run.runs")
