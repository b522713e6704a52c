#include "capi/nccl/device_comms.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/log.h"

namespace ropewalk::nccl {
namespace {

namespace gpus = transport::window;

// The layout of the resource window.
struct ResourceLayout {
  std::vector<ResourceHandle> handles;  // of the program's list
  std::uint64_t bytes = 0;
};

// Rounded up. Alignments need not be powers of two.
constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t to) {
  return (value + to - 1) / to * to;
}

// The barriers come first: their handle is 0.
ResourceLayout layout_of(const DevCommRequest& asked, int ranks) {
  ResourceLayout layout;
  layout.bytes = lsa_barrier_bytes(asked.lsa_barriers, ranks);
  for (const Resource& resource : asked.resources) {
    const std::uint64_t unit = std::max(kResourceUnit, resource.alignment);
    // As NVIDIA's library, for an alignment that is no multiple of the unit: handles are rounded
    // down.
    layout.bytes = round_up(layout.bytes, unit);
    layout.handles.push_back(static_cast<ResourceHandle>(layout.bytes / kResourceUnit));
    layout.bytes += resource.bytes;
  }
  layout.bytes = round_up(layout.bytes, kResourceUnit);
  return layout;
}

// What a rank tells the others. Sent as it lies: all ranks run the same build.
struct Told {
  std::uint64_t bytes = 0;
  std::uint64_t resources = 0;
  std::uint64_t digest = 0;  // of the handles
  std::int32_t barriers = 0;
  std::int32_t code = 0;
  std::array<char, 224> why_not{};
};

Told told_of(const DevCommRequest& asked, const ResourceLayout& layout) {
  Told told;
  told.bytes = layout.bytes;
  told.resources = asked.resources.size();
  told.barriers = asked.lsa_barriers;
  told.digest = 0xcbf29ce484222325;  // FNV-1a, by words
  for (const ResourceHandle handle : layout.handles) {
    told.digest = (told.digest ^ handle) * 0x100000001b3;
  }
  return told;
}

std::string words(const Told& told) {
  return fmt::format("{} LSA barriers and {} resources, {} bytes in all", told.barriers,
                     told.resources, told.bytes);
}

bool same(const Told& a, const Told& b) {
  return a.bytes == b.bytes && a.resources == b.resources && a.digest == b.digest &&
         a.barriers == b.barriers;
}

// Collective: throws what any rank could not, or where they differ.
void agree(comm::Communicator& comm, Told own, const std::optional<Error>& failed) {
  if (failed.has_value()) {
    own.code = static_cast<std::int32_t>(failed->code());
    std::string_view(failed->what()).copy(own.why_not.data(), own.why_not.size() - 1);
  }
  std::vector<Told> all(static_cast<std::size_t>(comm.size()));
  all[static_cast<std::size_t>(comm.rank())] = own;
  comm.exchange(std::as_writable_bytes(std::span(all)), sizeof(Told));
  if (failed.has_value()) throw Error(*failed);
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].why_not[0] != '\0') {
      throw Error(static_cast<Errc>(all[r].code), "rank {}: {}", r, all[r].why_not.data());
    }
  }
  for (std::size_t r = 1; r < all.size(); ++r) {
    if (same(all[r], all[0])) continue;
    throw Error(
        Errc::kInvalidUsage,
        "reqs: ranks ask for different device communicators: rank {} for {}, rank 0 for {}{}", r,
        words(all[r]), words(all[0]),
        words(all[r]) == words(all[0]) ? ", of other sizes or in another order" : "");
  }
}

// Such that x / y can be computed as the upper half of x * reciprocal(y), at most one too small;
// 0 for 1.
std::uint32_t reciprocal(std::uint32_t y) {
  return std::numeric_limits<std::uint32_t>::max() / y + (std::has_single_bit(y) ? 1U : 0U);
}

// What all layouts have.
struct Common {
  int rank = 0;
  int ranks = 0;
  std::uint64_t table = 0;
  int barriers = 0;
  void* window = nullptr;  // null without resources, as are the next two
  char* flat_base = nullptr;
  std::uint32_t stride_4g = 0;
};

template <typename Layout>
void put_common(Layout& to, const Common& common) {
  to.rank = common.rank;
  to.nRanks = common.ranks;
  to.nRanks_rcp32 = reciprocal(static_cast<std::uint32_t>(common.ranks));
  to.lsaRank = to.rank;
  to.lsaSize = to.nRanks;
  to.lsaSize_rcp32 = to.nRanks_rcp32;
  to.windowTable = common.table;
  to.resourceWindow = common.window;
  to.resourceWindow_inlined.lsaFlatBase = common.flat_base;
  to.resourceWindow_inlined.stride4G = common.stride_4g;
  to.lsaBarrier.nBarriers = common.barriers;
}

DevComm22807 made_22807(const Common& common) {
  DevComm22807 made{};
  put_common(made, common);
  if (common.window != nullptr) {
    made.resourceWindow_inlined.lsaRank = common.rank;
    made.resourceWindow_inlined.worldRank = common.rank;
  }
  return made;
}

DevComm22907 made_22907(const Common& common, std::uint64_t abort_flag) {
  DevComm22907 made{};
  made.older = made_22807(common);
  made.abortFlag = abort_flag;
  return made;
}

template <typename Layout>
Layout made_with_head(const Common& common, unsigned version, std::uint64_t abort_flag) {
  Layout made{};
  made.magic = kNcclMagic;
  made.version = version;
  put_common(made, common);
  made.abortFlag = abort_flag;
  return made;
}

template <typename Layout>
void put_bytes(const Layout& made, void* out) {
  std::memcpy(out, &made, sizeof made);
}

// Null for one without resources.
ncclWindow_t resource_window_of(const void* dev_comm) {
  const auto* bytes = static_cast<const std::byte*>(dev_comm);
  std::uint32_t first = 0;
  std::memcpy(&first, bytes, sizeof first);
  const std::size_t offset = first == kNcclMagic ? offsetof(DevComm23000, resourceWindow)
                                                 : offsetof(DevComm22807, resourceWindow);
  static_assert(offsetof(DevComm23000, resourceWindow) == offsetof(DevComm23100, resourceWindow));
  std::uintptr_t window = 0;
  std::memcpy(&window, bytes + offset, sizeof window);
  return reinterpret_cast<ncclWindow_t>(window);  // NOLINT(performance-no-int-to-ptr)
}

}  // namespace

DeviceComms::Resources::Resources(gpus::Gpu& gpu, std::uint64_t size)
    : bytes(size), memory(gpu, size, gpus::DeviceBuffer::From::kVirtualMemory) {
  constexpr std::uint64_t kPiece = 256 << 10;
  const std::vector<std::byte> zeros(std::min(size, kPiece));
  for (std::uint64_t offset = 0; offset < size; offset += kPiece) {
    gpu.fill(memory.data() + offset, zeros.data(), std::min(kPiece, size - offset));
  }
}

DeviceComms::DeviceComms(comm::Communicator& comm, int device, const Core& whose)
    : comm_(comm),
      whose_(whose),
      rank_(comm.rank()),
      size_(comm.size()),
      gpu_(comm.runtime().gpus().at(device)),
      abort_(std::make_shared<AbortFlag>(gpu_)),
      table_(gpu_) {
  for (const auto& [handle, window] : windows_of(whose)) window_added(handle, *window);
  comm_.when_broken([flag = abort_] { flag->raise(); });
}

DeviceComms::~DeviceComms() {
  for (const auto& [handle, resources] : resources_) remove_window(handle);
}

void DeviceComms::refuse(comm::Communicator& comm, const Error& why) { agree(comm, {}, why); }

// For ncclGetLsaDevicePointer and its like, and for ncclFindWindow.
void DeviceComms::enter(ncclWindow_t handle, const Resources& resources) {
  const comm::FlatMemory& memory = resources.window->memory();
  Window window;
  window.core = &whose_;
  window.buffer = memory.at(rank_);
  window.rank = rank_;
  window.all_load_store = true;
  window.flat = resources.window;
  window.refusal = "it is of a device communicator";
  for (int rank = 0; rank < size_; ++rank) {
    window.reached.push_back({memory.at(rank), resources.bytes});
  }
  window_added(handle, window);
  add_window(std::move(window));
}

void DeviceComms::create(const DevCommRequest& asked, void* out) {
  const ResourceLayout layout = layout_of(asked, size_);
  const Told told = told_of(asked, layout);
  std::unique_ptr<Resources> made;
  std::optional<Error> failed;
  try {
    if (layout.bytes > kMostResourceBytes) {
      throw Error(Errc::kInvalidArgument, "reqs: {} bytes of resources, and {} are the most",
                  layout.bytes, kMostResourceBytes);
    }
    if (layout.bytes > 0) made = std::make_unique<Resources>(gpu_, layout.bytes);
  } catch (const Error& error) {
    failed = error;
  }
  agree(comm_, told, failed);
  ncclWindow_t handle = nullptr;
  if (made != nullptr) {
    comm::FlatMemory::Made flat =
        comm::FlatMemory::map(comm_, gpu_, made->memory.pointer(), layout.bytes);
    if (flat.memory == nullptr) {
      throw Error(Errc::kInvalidUsage, "the resources cannot be mapped side by side: {}",
                  flat.why_not);
    }
    try {
      made->window = std::make_shared<const FlatWindow>(std::move(flat.memory), rank_);
      handle = made->window->handle();
      enter(handle, *made);
    } catch (const Error& error) {
      failed = error;
    }
    try {
      agree(comm_, told, failed);
    } catch (const Error&) {
      table_.remove(handle);
      remove_window(handle);
      throw;
    }
  }
  write(asked, made.get(), out);
  for (std::size_t i = 0; i < layout.handles.size(); ++i) {
    if (asked.resources[i].handle != nullptr) *asked.resources[i].handle = layout.handles[i];
  }
  if (made != nullptr) resources_[handle] = std::move(made);
}

void DeviceComms::write(const DevCommRequest& asked, const Resources* resources, void* out) const {
  Common common;
  common.rank = rank_;
  common.ranks = size_;
  common.table = table_.address();
  common.barriers = asked.lsa_barriers;
  if (resources != nullptr) {
    const comm::FlatMemory& memory = resources->window->memory();
    common.window = resources->window->handle();
    common.flat_base = static_cast<char*>(memory.at(0));
    common.stride_4g = static_cast<std::uint32_t>(memory.stride() / comm::FlatMemory::kStep);
  }
  const std::uint64_t flag = abort_->address();
  switch (asked.layout) {
    case DevCommLayout::k22807: return put_bytes(made_22807(common), out);
    case DevCommLayout::k22907: return put_bytes(made_22907(common, flag), out);
    case DevCommLayout::k23000:
      return put_bytes(made_with_head<DevComm23000>(common, asked.version, flag), out);
    case DevCommLayout::k23100:
      return put_bytes(made_with_head<DevComm23100>(common, asked.version, flag), out);
  }
}

void DeviceComms::destroy(const void* dev_comm) {
  const ncclWindow_t handle = resource_window_of(dev_comm);
  if (handle == nullptr) return;
  const auto found = resources_.find(handle);
  if (found == resources_.end()) {
    throw Error(Errc::kInvalidArgument,
                "devComm: it is no device communicator of this communicator, or was destroyed");
  }
  table_.remove(handle);
  remove_window(handle);
  resources_.erase(found);
}

void DeviceComms::window_added(ncclWindow_t handle, const Window& window) {
  if (window.flat == nullptr) return;
  table_.add(reinterpret_cast<std::uint64_t>(window.buffer), window.flat->own_bytes(), handle);
}

std::size_t DeviceComms::memory_bytes() const noexcept {
  std::size_t bytes = 0;
  for (const auto& [handle, resources] : resources_) bytes += resources->bytes;
  return bytes;
}

}  // namespace ropewalk::nccl
