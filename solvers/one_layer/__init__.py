"""One hidden layer to the global optimum: units one by one, and a proof of what is left."""
