"""What holds for a network on all its inputs: its calls followed with bounds in place of values."""
