#include "capi/nccl/windows.h"

#include <map>
#include <utility>

#include "capi/nccl/device_comms.h"
#include "capi/nccl/device_layout.h"
#include "capi/nccl/group.h"
#include "capi/nccl/guard.h"
#include "capi/nccl/handle.h"
#include "core/log.h"
#include "core/mutex.h"

namespace ropewalk::nccl {
namespace {

// Bits that an address of no processor and no GPU has together.
constexpr std::uint64_t kFirstHandle = 0x5257'0000'0000'0001;

struct Table {
  Mutex mutex;
  std::uint64_t next RW_GUARDED_BY(mutex) = kFirstHandle;
  std::map<std::uint64_t, std::shared_ptr<const Window>> windows RW_GUARDED_BY(mutex);
};

Table& table() {
  static auto* windows = new Table;  // used by threads that outlive main()
  return *windows;
}

std::uint64_t number_of(ncclWindow_t handle) { return reinterpret_cast<std::uint64_t>(handle); }

ncclResult_t register_window(ncclComm_t comm, void* buffer, std::size_t bytes, ncclWindow_t* window,
                             bool symmetric) {
  checked(window, "win");
  require_unrevoked(core_of(comm));
  return run_on(comm->core, [core = comm->core, buffer, bytes, window, symmetric] {
    Window made;
    made.core = core.get();
    made.buffer = buffer;
    made.rank = core->comm->rank();
    comm::DeviceGroup* group = core->comm->device();
    if (group == nullptr) throw Error(Errc::kInvalidUsage, "comm: it has no GPU");
    made.all_load_store = group->reaches_all();
    // Memory that peers cannot reach cannot be mapped for them.
    if (made.all_load_store) add_flat(*core->comm, core->device, made, bytes);
    made.number = core->comm->register_buffer(
        buffer, bytes, made.flat != nullptr ? made.flat->shared() : link::MappedBuffers{},
        symmetric);
    if (made.flat == nullptr) made.reached = group->reached_buffers(made.number);
    add_puts(*core->one_sided, made, bytes);
    const ncclWindow_t handle = add_window(std::move(made));
    if (core->device_comms != nullptr) {
      core->device_comms->window_added(handle, *window_of(handle));
    }
    *window = handle;
  });
}

void deregister_window(ncclComm_t comm, ncclWindow_t handle) {
  Core& core = ready(comm);
  // NVIDIA's library returns NULL if it could not make a window.
  if (handle == nullptr) return;
  const std::shared_ptr<const Window> window = own_window(core, handle);
  if (window->number == 0) {
    throw Error(Errc::kInvalidArgument, "win: {} is of a device communicator (ncclDevCommDestroy)",
                static_cast<const void*>(handle));
  }
  if (window->puts != nullptr) core.one_sided->remove(*window->puts);
  core.comm->deregister_buffer(window->number);
  if (core.device_comms != nullptr) core.device_comms->window_removed(handle);
  remove_window(handle);
}

void* user_pointer(ncclComm_t comm, ncclWindow_t handle) {
  return own_window(core_of(comm), handle)->buffer;
}

// nullptr where this rank does not reach it.
void* pointer_at(const Window& window, int rank, std::size_t offset, const char* argument) {
  if (rank < 0 || static_cast<std::size_t>(rank) >= window.reached.size()) {
    throw Error(Errc::kInvalidArgument, "{}: {} is outside 0 to {}", argument, rank,
                window.reached.size() - 1);
  }
  const link::BufferRange& range = window.reached[static_cast<std::size_t>(rank)];
  if (range.begin == nullptr) return nullptr;
  if (offset > range.bytes) {
    throw Error(Errc::kInvalidArgument, "offset: {} is beyond the {} bytes of rank {}", offset,
                range.bytes, rank);
  }
  return static_cast<std::byte*>(const_cast<void*>(range.begin)) + offset;
}

// Of a rank of the team that ncclTeamLsa names: all ranks, or this one alone.
void* load_store_pointer(const Window& window, int lsa_rank, std::size_t offset) {
  if (!window.all_load_store && lsa_rank != 0) {
    throw Error(Errc::kInvalidArgument, "lsaRank: {}, and this rank reaches its own memory alone",
                lsa_rank);
  }
  const int rank = window.all_load_store ? lsa_rank : window.rank;
  void* pointer = pointer_at(window, rank, offset, "lsaRank");
  if (pointer == nullptr) {
    throw Error(Errc::kInvalidUsage,
                "lsaRank: rank {} registered memory that others cannot open; ncclMemAlloc gives "
                "memory that they can",
                rank);
  }
  return pointer;
}

}  // namespace

FlatWindow::FlatWindow(std::shared_ptr<const comm::FlatMemory> memory, int rank)
    : memory_(std::move(memory)),
      rank_(rank),
      layout_(memory_->gpu(), sizeof(ncclWindow_vidmem),
              transport::window::DeviceBuffer::From::kAllocator) {
  ncclWindow_vidmem layout{};
  layout.lsaFlatBase = static_cast<char*>(memory_->at(0));
  layout.lsaRank = rank;
  layout.worldRank = rank;
  layout.stride4G = static_cast<std::uint32_t>(memory_->stride() / comm::FlatMemory::kStep);
  layout.numSegments = 1;
  memory_->gpu().fill(layout_.data(), &layout, sizeof layout);
}

link::MappedBuffers FlatWindow::shared() const {
  link::MappedBuffers buffers;
  for (std::size_t rank = 0; rank < memory_->bytes().size(); ++rank) {
    buffers.emplace_back(memory_, static_cast<std::byte*>(memory_->at(static_cast<int>(rank))));
  }
  return buffers;
}

void add_flat(comm::Communicator& comm, int device, Window& window, std::size_t bytes) {
  comm::FlatMemory::Made made =
      comm::FlatMemory::map(comm, comm.runtime().gpus().at(device), window.buffer, bytes);
  if (made.memory == nullptr) {
    log::info(log::kP2p, "kernels cannot read the window at {}: {}", window.buffer, made.why_not);
    return;
  }
  try {
    window.flat = std::make_shared<const FlatWindow>(std::move(made.memory), comm.rank());
  } catch (const Error& error) {  // of this rank alone, and the others need not know
    log::warn("kernels cannot read the window at {}: {}", window.buffer, error.what());
    return;
  }
  const comm::FlatMemory& memory = window.flat->memory();
  window.reached.clear();
  for (int rank = 0; rank < comm.size(); ++rank) {
    window.reached.push_back({memory.at(rank), memory.bytes()[static_cast<std::size_t>(rank)]});
  }
}

void add_puts(OneSided& one_sided, Window& window, std::size_t bytes) {
  try {
    std::vector<void*> mapped;
    for (std::size_t r = 0; window.flat != nullptr && r < window.reached.size(); ++r) {
      mapped.push_back(const_cast<void*>(window.reached[r].begin));
    }
    window.puts = &one_sided.add(window.buffer, bytes, std::move(mapped));
  } catch (const message::Refused& refused) {  // on all ranks
    window.refusal = refused.what();
    log::info(log::kP2p, "ncclPutSignal cannot put to the window at {}: {}", window.buffer,
              window.refusal);
  }
}

ncclWindow_t add_window(Window window) {
  Table& all = table();
  const Lock lock(all.mutex);
  const std::uint64_t number =
      window.flat != nullptr ? number_of(window.flat->handle()) : all.next++;
  all.windows[number] = std::make_shared<const Window>(std::move(window));
  return reinterpret_cast<ncclWindow_t>(number);  // NOLINT(performance-no-int-to-ptr)
}

std::shared_ptr<const Window> window_of(ncclWindow_t handle) {
  Table& all = table();
  const Lock lock(all.mutex);
  const auto found = all.windows.find(number_of(handle));
  if (found == all.windows.end()) {
    throw Error(Errc::kInvalidArgument, "win: {} is not a window, or one that was deregistered",
                static_cast<const void*>(handle));
  }
  return found->second;
}

std::shared_ptr<const Window> own_window(const Core& core, ncclWindow_t handle) {
  std::shared_ptr<const Window> window = window_of(handle);
  if (window->core != &core) {
    throw Error(Errc::kInvalidArgument, "win: {} is of another communicator",
                static_cast<const void*>(handle));
  }
  return window;
}

void remove_window(ncclWindow_t handle) {
  Table& all = table();
  const Lock lock(all.mutex);
  all.windows.erase(number_of(handle));
}

std::vector<std::pair<ncclWindow_t, std::shared_ptr<const Window>>> windows_of(const Core& core) {
  std::vector<std::pair<ncclWindow_t, std::shared_ptr<const Window>>> found;
  Table& all = table();
  const Lock lock(all.mutex);
  for (const auto& [number, window] : all.windows) {
    if (window->core != &core) continue;
    found.emplace_back(reinterpret_cast<ncclWindow_t>(number),  // NOLINT(performance-no-int-to-ptr)
                       window);
  }
  return found;
}

void remove_windows_of(const Core& core) {
  Table& all = table();
  const Lock lock(all.mutex);
  std::erase_if(all.windows, [&](const auto& entry) { return entry.second->core == &core; });
}

}  // namespace ropewalk::nccl

using namespace ropewalk;        // NOLINT: this file is the edge
using namespace ropewalk::nccl;  // NOLINT

// The other flags choose among NVIDIA's own networks.
RW_NCCL_API(ncclResult_t, ncclCommWindowRegister, ncclComm_t comm, void* buffer, std::size_t bytes,
            ncclWindow_t* window, int flags) {
  return guarded("ncclCommWindowRegister", [&] {
    const bool symmetric = (flags & kNcclWinCollSymmetric) != 0;
    return register_window(comm, buffer, bytes, window, symmetric);
  });
}

RW_NCCL_API(ncclResult_t, ncclCommWindowDeregister, ncclComm_t comm, ncclWindow_t window) {
  return guarded("ncclCommWindowDeregister", [&] { deregister_window(comm, window); });
}

RW_NCCL_API(ncclResult_t, ncclWinGetUserPtr, ncclComm_t comm, ncclWindow_t window, void** pointer) {
  return guarded("ncclWinGetUserPtr",
                 [&] { checked(pointer, "outUserPtr") = user_pointer(comm, window); });
}

// NULL is not an error: callers take it for "by the network".
RW_NCCL_API(ncclResult_t, ncclGetPeerDevicePointer, ncclWindow_t window, std::size_t offset,
            int peer, void** pointer) {
  return guarded("ncclGetPeerDevicePointer", [&] {
    checked(pointer, "outPtr") = pointer_at(*window_of(window), peer, offset, "peer");
  });
}

RW_NCCL_API(ncclResult_t, ncclGetLsaDevicePointer, ncclWindow_t window, std::size_t offset,
            int lsa_rank, void** pointer) {
  return guarded("ncclGetLsaDevicePointer", [&] {
    checked(pointer, "outPtr") = load_store_pointer(*window_of(window), lsa_rank, offset);
  });
}

// NULL is NVIDIA's answer too where GPUs have no multicast memory; windows here have none.
RW_NCCL_API(ncclResult_t, ncclGetLsaMultimemDevicePointer, ncclWindow_t window,
            std::size_t /*offset*/, void** pointer) {
  return guarded("ncclGetLsaMultimemDevicePointer", [&] {
    void*& out = checked(pointer, "outPtr");
    (void)window_of(window);
    out = nullptr;
  });
}
