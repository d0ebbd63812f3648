"""The kernels on a GPU: are they right, how fast are they, and what are they worth in training?"""
