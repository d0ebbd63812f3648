"""What papers and benchmarks share: stored runs, searches for settings, tables, the control."""
