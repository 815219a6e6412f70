"""Two hosts with emulated links between them on one machine: real namespaces, real TCP, MPTCP and UDP."""

from multi.lab.testbed.errors import TestbedError, TestbedNotAllowed
from multi.lab.testbed.hosts import Host, Link, Testbed
from multi.lab.testbed.namespaces import enter_user_namespace
from multi.lab.testbed.pipe import PipeStatistics
from multi.lab.testbed.relay import Interceptor, WayStatistics
from multi.lab.testbed.specs import Direction, LinkSpec, builtin_profiles, load_profile, paper_links

__all__ = [
    "Direction",
    "Host",
    "Interceptor",
    "Link",
    "LinkSpec",
    "PipeStatistics",
    "Testbed",
    "TestbedError",
    "TestbedNotAllowed",
    "WayStatistics",
    "builtin_profiles",
    "enter_user_namespace",
    "load_profile",
    "paper_links",
]
