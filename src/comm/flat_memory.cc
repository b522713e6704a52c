#include "comm/flat_memory.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "core/descriptor_server.h"
#include "core/error.h"
#include "core/file_descriptor.h"
#include "transport/window/device/gpu_memory.h"

namespace ropewalk::comm {
namespace {

namespace gpus = transport::window;
using gpus::CudaApi;
using gpus::CurrentContext;

// For handing descriptors over, where no rank has died.
constexpr std::chrono::seconds kPatience{30};

// What a rank tells the others of its buffer, and how it ended. Sent as it lies: all ranks run the
// same build.
struct Offer {
  std::uint64_t bytes = 0;
  std::uint64_t allocation_bytes = 0;
  std::uint64_t offset = 0;
  std::array<char, 32> server{};
  std::array<char, 160> why_not{};
};
struct Outcome {
  std::array<char, 160> why_not{};
};

template <std::size_t N>
void put_text(std::array<char, N>& to, std::string_view text) {
  text.copy(to.data(), N - 1);
}

// The first rank that could not.
template <typename Told>
std::string first_reason(const std::vector<Told>& all) {
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].why_not[0] != '\0') return fmt::format("rank {}: {}", r, all[r].why_not.data());
  }
  return {};
}

FileDescriptor descriptor_of(const CudaApi& cuda, gpus::CuAllocation allocation) {
  int descriptor = -1;
  cuda.check(cuda.export_allocation(&descriptor, allocation, gpus::kCuHandleFileDescriptor, 0),
             "cuMemExportToShareableHandle");
  return FileDescriptor(descriptor);
}

template <typename T>
void exchange(Communicator& comm, std::vector<T>& all) {
  comm.exchange(std::as_writable_bytes(std::span(all)), sizeof(T));
}

}  // namespace

void FlatMemory::map_at(int rank, gpus::CuAllocation allocation, std::uint64_t bytes) {
  const CudaApi& cuda = gpu_.cuda();
  const std::uint64_t address = range_ + static_cast<std::uint64_t>(rank) * stride_;
  cuda.check(cuda.map(address, bytes, 0, allocation, 0), "cuMemMap");
  mapped_.push_back({address, bytes});
  const gpus::CuAccess access{{gpus::kCuLocationDevice, gpu_.ordinal()}, gpus::kCuAccessReadWrite};
  cuda.check(cuda.set_access(address, bytes, &access, 1), "cuMemSetAccess");
}

FlatMemory::Made FlatMemory::map(Communicator& comm, gpus::Gpu& gpu, void* buffer,
                                 std::size_t bytes) {
  const CudaApi& cuda = gpu.cuda();
  const CurrentContext current(cuda, gpu.context());
  const auto self = static_cast<std::size_t>(comm.rank());
  std::vector<Offer> offers(static_cast<std::size_t>(comm.size()));
  Offer& own = offers[self];
  std::optional<gpus::RetainedAllocation> retained;
  std::optional<DescriptorServer> server;
  FileDescriptor descriptor;
  try {
    if (!cuda.has_virtual_memory()) throw Error(Errc::kCuda, "no virtual-memory management");
    const gpus::GpuMemory found = gpus::find_gpu_memory(comm.runtime().gpus(), buffer, bytes);
    if (found.gpu != &gpu) {
      throw Error(Errc::kInvalidArgument, "{} is on {}", buffer, found.gpu->name());
    }
    if (!found.virtual_memory) {
      throw Error(Errc::kInvalidArgument,
                  "{} is not of CUDA's virtual memory functions (setting MEM_ALLOC)", buffer);
    }
    if (found.allocations.size() != 1) {
      throw Error(Errc::kInvalidArgument, "{} lies in {} allocations", buffer,
                  found.allocations.size());
    }
    own.bytes = bytes;
    own.allocation_bytes = found.allocations.front().bytes;
    own.offset = found.data - found.allocations.front().base;
    retained.emplace(cuda, found.data);
    descriptor = descriptor_of(cuda, retained->handle());
    server.emplace();
    std::memcpy(own.server.data(), server->name().data(), own.server.size());
  } catch (const Error& error) {
    put_text(own.why_not, error.what());
  }
  exchange(comm, offers);
  Made made;
  made.why_not = first_reason(offers);
  for (std::size_t r = 0; r < offers.size() && made.why_not.empty(); ++r) {
    if (offers[r].offset == offers[0].offset) continue;
    made.why_not = fmt::format(
        "rank {}: its buffer is {} bytes behind the start of its allocation, that of rank 0 {}", r,
        offers[r].offset, offers[0].offset);
  }
  if (!made.why_not.empty()) return made;

  std::unique_ptr<FlatMemory> memory(new FlatMemory(gpu));
  std::uint64_t most = 0;
  for (const Offer& offer : offers) {
    most = std::max(most, offer.allocation_bytes);
    memory->bytes_.push_back(offer.bytes);
  }
  memory->offset_ = own.offset;
  memory->stride_ = (most + kStep - 1) / kStep * kStep;
  std::vector<Outcome> outcomes(offers.size());
  std::vector<FileDescriptor> fetched(offers.size());
  try {
    // One after the other, in the same order everywhere: each serves while all others fetch.
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    for (std::size_t r = 0; r < offers.size(); ++r) {
      if (r == self) {
        server->serve(descriptor.get(), comm.size() - 1, deadline, [&] { comm.failure().check(); });
      } else {
        fetched[r] = fetch_descriptor(
            std::string_view(offers[r].server.data(), offers[r].server.size()), deadline);
      }
    }
    const std::uint64_t total = memory->stride_ * offers.size();
    cuda.check(cuda.reserve_addresses(&memory->range_, total, 0, 0, 0), "cuMemAddressReserve");
    memory->range_bytes_ = total;
    for (std::size_t r = 0; r < offers.size(); ++r) {
      const int rank = static_cast<int>(r);
      if (r == self) {
        memory->map_at(rank, retained->handle(), own.allocation_bytes);
        continue;
      }
      gpus::CuAllocation allocation = 0;
      // The descriptor itself is passed as the pointer argument, as CUDA requires.
      const auto number = static_cast<std::intptr_t>(fetched[r].get());
      cuda.check(cuda.import_allocation(
                     &allocation,
                     reinterpret_cast<void*>(number),  // NOLINT(performance-no-int-to-ptr)
                     gpus::kCuHandleFileDescriptor),
                 "cuMemImportFromShareableHandle");
      try {
        memory->map_at(rank, allocation, offers[r].allocation_bytes);
      } catch (const Error&) {
        cuda.warn(cuda.release_allocation(allocation), "cuMemRelease");
        throw;
      }
      cuda.warn(cuda.release_allocation(allocation), "cuMemRelease");  // the mapping keeps it
    }
  } catch (const Error& error) {
    put_text(outcomes[self].why_not, error.what());
  }
  exchange(comm, outcomes);
  made.why_not = first_reason(outcomes);
  if (made.why_not.empty()) made.memory = std::move(memory);
  return made;
}

FlatMemory::~FlatMemory() {
  const CudaApi& cuda = gpu_.cuda();
  try {
    const CurrentContext current(cuda, gpu_.context());
    for (const Mapping& one : mapped_) cuda.warn(cuda.unmap(one.address, one.bytes), "cuMemUnmap");
    if (range_bytes_ != 0) {
      cuda.warn(cuda.free_addresses(range_, range_bytes_), "cuMemAddressFree");
    }
  } catch (const Error&) {
    // CUDA has ended before this did, and its mappings with it.
  }
}

}  // namespace ropewalk::comm
