"""Calls of libraries in child processes, bounded in time and memory."""
