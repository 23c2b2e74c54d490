"""One rank of several jobs, one after another: `mpiexec -n N python -m mpi4py mpi_jobs.py FOLDER ..`."""

import sys
from pathlib import Path

from shardproof.backends.execution.rank import main

if __name__ == "__main__":
    for folder in sys.argv[1:]:
        main(Path(folder))
