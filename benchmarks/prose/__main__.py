"""Write the figures of README.md and docs/."""

from benchmarks.prose import main

main()
