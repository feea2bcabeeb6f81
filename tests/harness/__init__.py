"""The real Claude Code, installed once, cut off from every network, answered by a script."""
