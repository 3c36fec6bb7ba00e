"""Pretended GPUs: CUDA tensors in host memory, and the driver functions that Python calls.

The tensors are in kernels.cpp, the functions in this file. `install` replaces the functions of
`torch._C` that call the driver; `torch.cuda` itself stays. gloo takes the place of NCCL. Needs a
CUDA build of torch, and no driver. docs/design.md describes its limits.
"""

import atexit
import os
import types
from typing import Any

EVENT_LOOKS = 2  # queries until an event is over, or a wait: then the copies before it are made


def install(library: str, num_gpus: int, memory_mib: int) -> None:
    """Pretend `num_gpus` GPUs with `memory_mib` in total in this process.

    CUDA_VISIBLE_DEVICES may hide some. `library` is built from kernels.cpp. Call it before the
    first tensor is made.
    """
    import torch
    from torch import distributed as dist

    torch.ops.load_library(library)
    gpu: Any = torch.ops.pretended_gpu
    gpu.replace_kernels(memory_mib << 20)
    # CUDA never uses it, and its bfloat16 products gave infinities here
    torch._C._set_mkldnn_enabled(False)
    _replace_driver(torch, gpu, num_gpus)
    _replace_streams(torch, gpu)
    _replace_graphs(torch, gpu)
    _replace_memory(torch, gpu)
    _replace_nccl(dist)
    if "LOCKSTEP_PRETENDED_ASKS" in os.environ:
        atexit.register(
            lambda: print(
                f"{gpu.num_asked()} kinds of calls were put to CUDA's kernels", flush=True
            )
        )


def visible_gpus(num_gpus: int, visible: str | None) -> list[int]:
    """The visible GPUs: CUDA reads CUDA_VISIBLE_DEVICES up to the first invalid entry."""
    if visible is None:
        return list(range(num_gpus))
    found: list[int] = []
    for word in visible.split(","):
        if not word.strip().isdecimal() or int(word) >= num_gpus:
            break
        found.append(int(word))
    return found if len(set(found)) == len(found) else []


def _replace_driver(torch: Any, gpu: Any, num_gpus: int) -> None:
    # process ids: a fork of a process that has started CUDA cannot use it
    started_by: list[int] = []
    mode = 0
    gpu.find(num_gpus)

    def count() -> int:
        return len(visible_gpus(num_gpus, os.environ.get("CUDA_VISIBLE_DEVICES")))

    def start() -> None:
        if not count():
            raise RuntimeError("No CUDA GPUs are available")
        started_by.append(os.getpid())
        gpu.start(count())
        torch.cuda._get_device_properties = properties
        torch.cuda.default_generators = tuple(gpu.generator(number) for number in range(count()))

    def checked(index: int) -> int:
        if not -1 <= index < count():
            raise RuntimeError("CUDAn error: invalid device ordinal")
        return index

    def exchange_device(index: int) -> int:
        return gpu.exchange_device(checked(index))

    def is_in_bad_fork() -> bool:
        return bool(started_by) and os.getpid() not in started_by

    def properties(device: int) -> Any:
        checked(device)
        return types.SimpleNamespace(
            name="Pretended GPU",
            major=9,
            minor=0,
            total_memory=gpu.memory()[2],
            multi_processor_count=1,
            is_integrated=0,
            warp_size=32,
            max_threads_per_multi_processor=2048,
            regs_per_multiprocessor=65536,
            L2_cache_size=1 << 20,
        )

    def set_sync_debug_mode(value: int) -> None:
        nonlocal mode
        mode = value
        gpu.set_sync_debug_mode(value)

    def get_sync_debug_mode() -> int:
        return mode

    def synchronize() -> None:
        gpu.refuse_while_capturing("synchronize")
        gpu.flush()

    def nothing() -> None: ...

    replaced = {
        "_cuda_init": start,
        "_cuda_getDeviceCount": count,
        "_cuda_isInBadFork": is_in_bad_fork,
        "_cuda_getDevice": gpu.device,
        "_cuda_setDevice": exchange_device,
        "_cuda_exchangeDevice": exchange_device,
        "_cuda_maybeExchangeDevice": exchange_device,
        "_cuda_synchronize": synchronize,
        "_cuda_canDeviceAccessPeer": lambda one, other: abs(one - other) == 1,
        "_cuda_set_sync_debug_mode": set_sync_debug_mode,
        "_cuda_get_sync_debug_mode": get_sync_debug_mode,
        "_cuda_clearCublasWorkspaces": nothing,
    }
    for name, function in replaced.items():
        setattr(torch._C, name, function)
    # names that torch.cuda bound when it was imported
    torch.cuda._is_in_bad_fork = is_in_bad_fork
    torch.cuda._exchange_device = exchange_device
    torch.cuda._maybe_exchange_device = exchange_device


def _replace_streams(torch: Any, gpu: Any) -> None:
    """Streams are numbers: work is done immediately, except for copies to the host.

    Events make these copies.
    """
    cuda_type = 1  # of torch's enumeration of devices

    class Event:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._looks = 0
            self._capture = 0  # the number of the capture that it was recorded in

        def record(self, stream: Any = None) -> None:
            self._looks = EVENT_LOOKS
            self._capture = gpu.capture_of((stream or torch.cuda.current_stream()).stream_id)

        def query(self) -> bool:
            gpu.refuse_while_capturing("query of an event")
            self._looks = max(0, self._looks - 1)
            if not self._looks:
                gpu.flush()
            return not self._looks

        def synchronize(self) -> None:
            gpu.refuse_while_capturing("synchronize an event")
            self._looks = 0
            gpu.flush()

        def wait(self, stream: Any = None) -> None:
            gpu.wait_for(self._capture, (stream or torch.cuda.current_stream()).stream_id)

    class Stream:
        def __init__(
            self,
            device: Any = None,
            priority: int = 0,
            *,
            stream_id: int | None = None,
            device_index: int | None = None,
            device_type: int = cuda_type,
        ) -> None:
            torch.cuda._lazy_init()
            self.device_type = device_type
            if device_index is None:
                device_index = torch.cuda._utils._get_device_index(device, True)
            self.device_index = device_index
            self.stream_id = gpu.new_stream() if stream_id is None else stream_id
            self.device = torch.device("cuda", self.device_index)

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Stream) and (self.stream_id, self.device) == (
                other.stream_id,
                other.device,
            )

        def __hash__(self) -> int:
            return hash((self.stream_id, self.device))

        def synchronize(self) -> None:
            gpu.refuse_while_capturing("synchronize a stream")
            gpu.flush()

        def query(self) -> bool:
            gpu.refuse_while_capturing("query of a stream")
            return True

        def wait_stream(self, stream: Any) -> None:
            gpu.wait_for(gpu.capture_of(stream.stream_id), self.stream_id)

    def get_current_stream(device: int) -> tuple[int, int, int]:
        return gpu.stream(device), device, cuda_type

    def get_default_stream(device: int) -> tuple[int, int, int]:
        return 0, device, cuda_type

    def set_stream(stream_id: int, device_index: int, device_type: int) -> None:
        gpu.exchange_device(device_index)
        gpu.exchange_stream(stream_id)

    torch._C._cuda_getCurrentStream = get_current_stream
    torch._C._cuda_getDefaultStream = get_default_stream
    torch._C._cuda_setStream = set_stream
    for module in (torch.cuda, torch.cuda.streams):
        module.Event, module.Stream = Event, Stream


def _replace_graphs(torch: Any, gpu: Any) -> None:
    class CUDAGraph:
        def __init__(self, keep_graph: bool = False) -> None:
            self._graph = torch.classes.pretended_gpu.Graph()
            self._pool = torch.cuda.graph_pool_handle()

        def capture_begin(
            self,
            pool: Any = None,
            capture_error_mode: str = "global",
            check_input_liveness: bool = True,
        ) -> None:
            self._pool = pool or self._pool
            self._graph.capture_begin(list(self._pool), capture_error_mode)

        def capture_end(self) -> None:
            self._graph.capture_end()

        def replay(self) -> None:
            self._graph.replay()

        def pool(self) -> Any:
            return self._pool

        def register_generator_state(self, generator: Any) -> None:
            self._graph.register_generator(generator)

    torch._C._cuda_isCurrentStreamCapturing = gpu.is_capturing
    torch.cuda.graphs._cuda_isCurrentStreamCapturing = gpu.is_capturing
    torch.cuda.CUDAGraph = torch.cuda.graphs.CUDAGraph = CUDAGraph


def _replace_memory(torch: Any, gpu: Any) -> None:
    def memory_stats(device: int) -> dict[str, Any]:
        used, most, _ = gpu.memory()
        return {
            f"{name}_bytes": {"all": {"current": used, "peak": most}}
            for name in ("allocated", "reserved")
        }

    def memory_info(device: int) -> tuple[int, int]:
        used, _, limit = gpu.memory()
        return limit - used, limit

    def reset_peak(device: int) -> None:
        gpu.reset_most_memory()

    def empty_cache() -> None:
        gpu.refuse_while_capturing("empty_cache")

    def clone(storage: Any) -> Any:
        """Clone through a tensor: CUDA's own allocator makes other storages."""
        made = torch.empty(storage.nbytes(), dtype=torch.uint8, device=storage.device)
        return made.untyped_storage().copy_(storage)

    def runtime() -> Any:
        return types.SimpleNamespace(cudaMemGetInfo=memory_info)

    torch._C._cuda_memoryStats = memory_stats
    torch._C._cuda_resetPeakMemoryStats = reset_peak
    torch._C._cuda_emptyCache = empty_cache
    torch.cuda.cudart = runtime
    torch.UntypedStorage.clone = clone


def _replace_nccl(dist: Any) -> None:
    """Make groups named nccl from gloo, also for tensors of the CPU, which kernels.cpp refuses."""
    from torch import device
    from torch.distributed import distributed_c10d as c10d

    device_of_objects = c10d._get_object_coll_device

    def create(options: Any, backend_options: Any) -> Any:
        made = c10d.ProcessGroupGloo(
            options.store, options.group_rank, options.group_size, timeout=options.timeout
        )
        options.process_group._register_backend(
            device("cpu"), c10d.ProcessGroup.BackendType.NCCL, made
        )
        return made

    def get_object_coll_device(group: Any = None) -> str:
        """Device of pickled objects: torch prefers the CPU, which NCCL does not have."""
        return "cuda" if dist.get_backend(group) == "nccl" else device_of_objects(group)

    c10d._get_object_coll_device = get_object_coll_device

    dist.Backend._plugins["NCCL"] = dist.Backend._BackendPlugin(create, True)
