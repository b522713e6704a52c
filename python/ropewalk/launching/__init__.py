"""Starting a job's ranks on several hosts by the OpenSSH client (`ropewalk launch`)."""

from ropewalk.launching.hosts import Host, read_hosts
from ropewalk.launching.job import Job, Options

__all__ = ["Host", "Job", "Options", "read_hosts"]
