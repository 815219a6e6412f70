"""The schedulers that ship with `multi`, one file each; a new file here is a new scheduler."""

from multi.schedulers.registry import create_scheduler, register_scheduler, scheduler_names

__all__ = ["create_scheduler", "register_scheduler", "scheduler_names"]
