"""Runs on disk: files.py writes files, folder.py the folder of a run, command.py what began it."""
