"""One panel a module; panels never import one another."""
