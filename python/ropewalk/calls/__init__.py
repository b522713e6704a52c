"""Records of a job's calls (setting TRACE), compared between ranks, and in others' formats."""

from ropewalk.calls.records import Report, Reports, load

__all__ = ["Report", "Reports", "load"]
