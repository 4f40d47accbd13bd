"""The machine that times were measured on, and its fingerprint."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

import torch

from tgbench.base.strict_json import parsed
from tgbench.base.words import counted, printable


def cache_folder() -> Path:
    """The user's cache: measured times of kernels, checkpoints of random weights."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tgbench"


@dataclass(frozen=True)
class Machine:
    """What times depend on besides the kernel and the site.

    Fields:
        device: "cpu" or "cuda".
        processor: model of the CPU or GPU, family and stepping included where they are known.
        instructions: the instruction set that torch uses, or the GPU's compute capability.
        threads: that torch uses.
        cores: of the machine, not those that this process may use: threads say what kernels take.
        versions: of Python (major and minor) and of the libraries with kernels.
    """

    device: str
    processor: str
    instructions: str
    threads: int
    cores: int
    system: str
    versions: tuple[tuple[str, str], ...]

    @staticmethod
    def here(device: str = "cpu") -> Machine:
        """This machine, with the threads that torch uses now."""
        kind = device.split(":")[0]
        named, instructions = _gpu(device) if kind == "cuda" else _cpu()
        threads, system = torch.get_num_threads(), f"{platform.system()} {platform.machine()}"
        cores = os.cpu_count() or 1
        return Machine(kind, named, instructions, threads, cores, system, _versions(kind))

    @property
    def fingerprint(self) -> str:
        """A hash of all fields."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    @property
    def facts(self) -> dict[str, str]:
        """What plans and pages tell of it, by name."""
        versions = dict(self.versions)
        return {
            "processor": self.processor,
            "python": versions["python"],
            "torch": versions["torch"],
            "threads": str(self.threads),
        }

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Machine:
        """The machine of such a text; raises ValueError for any other."""
        try:
            fields = parsed(text, ValueError)
            versions = tuple((str(name), str(version)) for name, version in fields.pop("versions"))
            return Machine(versions=versions, **fields)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"no description of a machine: {text[:60]!r}") from error

    def __str__(self) -> str:
        packages = ", ".join(f"{name} {version}" for name, version in self.versions)
        return printable(
            f"{self.processor} ({self.instructions}, {counted(self.threads, 'thread')}; {packages})"
        )


def usable_cores() -> int:
    """The cores that this process may use now, which a scheduler or a user may have cut down."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def computes_alone(device: str) -> bool:
    """Whether all that kernels do is done by the thread that calls them."""
    return device == "cpu" and torch.get_num_threads() == 1


def cache_bytes(level: int) -> int:
    """Bytes of the processor's cache of a level; 0 where the system does not say."""
    name = f"SC_LEVEL{level}_CACHE_SIZE"
    return max(os.sysconf(name), 0) if name in os.sysconf_names else 0


@cache
def last_cache_bytes() -> int:
    """Bytes of the processor's last cache; 32 MiB where the system does not say."""
    return max(map(cache_bytes, (2, 3, 4))) or 32 << 20


def give_back_freed() -> None:
    """Give the system the memory that was freed: glibc keeps what lies below a block in use, for
    good, and other allocators have no such function.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))


def processor_name(*numbers: str) -> str:
    """What the CPU calls itself, and of some of its numbers those that are known.

    Args:
        numbers: as Linux names them: "cpu family", "model", "stepping".
    """
    told = _told()
    name = told.get("model name") or platform.processor() or platform.machine()
    return ", ".join([name, *(f"{key} {told[key]}" for key in numbers if key in told)])


def _cpu() -> tuple[str, str]:
    name = processor_name("cpu family", "model", "stepping")
    return name, torch.backends.cpu.get_cpu_capability()


@cache
def _told() -> Mapping[str, str]:
    """What Linux tells of the CPU; elsewhere nothing."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    return {key.strip(): value.strip() for key, _, value in (x.partition(":") for x in lines)}


@cache
def _gpu(device: str) -> tuple[str, str]:
    major, minor = torch.cuda.get_device_capability(device)
    return torch.cuda.get_device_name(device), f"{major}.{minor}"


@cache
def _versions(kind: str) -> tuple[tuple[str, str], ...]:
    found = {"python": ".".join(platform.python_version_tuple()[:2]), "torch": torch.__version__}
    if kind == "cuda":
        found["cuda"] = str(torch.version.cuda)
    for package in ("numpy", "numba", "onednn-cpu-gomp", *(("triton",) if kind == "cuda" else ())):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "absent"
    return tuple(sorted(found.items()))
