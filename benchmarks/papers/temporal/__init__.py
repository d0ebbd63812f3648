"""On Recurrent Neural Networks: artificial tasks, and music."""
