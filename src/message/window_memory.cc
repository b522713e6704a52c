#include "message/window_memory.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "bootstrap/memory_handover.h"
#include "core/descriptor_server.h"
#include "core/log.h"
#include "core/process_memory.h"
#include "core/units.h"
#include "message/device_part.h"
#include "message/kernel_queues.h"
#include "transport/window/device/gpu_memory.h"

namespace ropewalk::message {
namespace {

// Parts begin at pages, so that they can be mapped one by one.
std::size_t whole_pages(std::size_t bytes) {
  static const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

// What a rank tells the others of its part. Sent as it lies: all ranks run the same build.
struct Offer {
  std::uint64_t bytes = 0;
  std::uint64_t address = 0;      // of the user's memory; 0: the library allocates
  std::int64_t queue_bytes = -1;  // without queues
  std::int32_t slots = 0;
  std::int32_t code = 0;  // Errc, of a fault
  std::int32_t on_device = 0;
  std::array<char, 160> fault{};
  DeviceOffer device;
};

using ServerName = std::array<char, 32>;

// What the system could give without swapping, as Linux estimates it (MemAvailable of
// /proc/meminfo). Asked for more, it would end this process, or another one.
std::size_t available_bytes() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    std::size_t kibibytes = 0;
    if (std::sscanf(line.c_str(), "MemAvailable: %zu kB", &kibibytes) == 1) return kibibytes << 10U;
  }
  return std::numeric_limits<std::size_t>::max();
}

void require(bool right, const std::string& words) {
  if (!right) throw Error(Errc::kInvalidArgument, words);
}

std::size_t counters_bytes(std::size_t ranks, int slots) {
  return ranks * static_cast<std::size_t>(slots) * sizeof(SignalLine);
}

// Throws what is wrong with memory of a GPU.
std::shared_ptr<DevicePart> make_device_part(const WindowSpec& spec, std::size_t ranks) {
  if (spec.registers && spec.memory != nullptr) {
    const transport::window::GpuMemory found =
        transport::window::find_gpu_memory(*spec.gpus, spec.memory, spec.bytes);
    require(found.gpu == spec.gpu, fmt::format("memory: on {}, and {} was to be used",
                                               found.gpu->name(), spec.gpu->name()));
  }
  auto made = std::make_shared<DevicePart>(*spec.gpu, spec, counters_bytes(ranks, spec.slots));
  publish(made);
  return made;
}

// `device`: is set for memory of a GPU.
Offer offer_of(const WindowSpec& spec, std::size_t ranks, std::shared_ptr<DevicePart>& device) {
  Offer offer;
  offer.on_device = spec.gpu != nullptr ? 1 : 0;
  offer.bytes = spec.bytes;
  // Who registers nothing gets the library's memory, of no bytes.
  if (spec.registers) offer.address = reinterpret_cast<std::uint64_t>(spec.memory);
  offer.slots = spec.slots;
  if (spec.queue_bytes.has_value()) {
    offer.queue_bytes = static_cast<std::int64_t>(*spec.queue_bytes);
  }
  try {
    if (spec.fault.has_value()) throw Error(*spec.fault);
    RW_ASSERT(spec.counters || (spec.slots == 0 && spec.registers));
    require(!spec.counters || (spec.slots >= 1 && spec.slots <= kMostSlots),
            fmt::format("slots: {} is not in 1 to {}", spec.slots, kMostSlots));
    require(!spec.queue_bytes.has_value() || QueueLayout::is_size(*spec.queue_bytes),
            fmt::format("bytes: {} of a queue are not in 1 to {}", spec.queue_bytes.value_or(0),
                        QueueLayout::kMostBytes));
    require(spec.bytes <= kMostWindowBytes,
            fmt::format("bytes: {} is more than {}", spec.bytes, kMostWindowBytes));
    if (spec.gpu != nullptr) {
      require(!spec.registers || spec.memory != nullptr || spec.bytes == 0,
              fmt::format("memory: NULL, and {} bytes", spec.bytes));
      device = make_device_part(spec, ranks);
      offer.device = device->offer();
      return offer;
    }
    require(spec.counters, "memory: it is the host's, which streams cannot use");
    if (const std::size_t most = available_bytes(); !spec.registers && spec.bytes > most) {
      throw Error(Errc::kSystem, "shared memory: {} were needed, and {} are available",
                  format_bytes(spec.bytes), format_bytes(most));
    }
    require(!spec.registers || spec.memory != nullptr || spec.bytes == 0,
            fmt::format("memory: NULL, and {} bytes", spec.bytes));
    require(!spec.registers || is_mapped(spec.memory, spec.bytes),
            fmt::format("memory: {} bytes at {} are not all memory of this process", spec.bytes,
                        spec.memory));
  } catch (const Error& error) {
    offer.code = static_cast<std::int32_t>(error.code());
    std::string_view(error.what()).copy(offer.fault.data(), offer.fault.size() - 1);
  }
  return offer;
}

const char* kind_of(const Offer& offer) {
  return offer.on_device != 0 ? "memory of a GPU" : "the host's";
}

std::string queues_of(const Offer& offer) {
  return offer.queue_bytes < 0 ? "none" : fmt::format("{} bytes", offer.queue_bytes);
}

void check(std::span<const Offer> offers) {
  for (std::size_t r = 0; r < offers.size(); ++r) {
    if (offers[r].fault[0] != '\0') {
      throw Refused(static_cast<Errc>(offers[r].code), "rank {}: {}", r, offers[r].fault.data());
    }
  }
  for (std::size_t r = 0; r < offers.size(); ++r) {
    if (offers[r].slots != offers[0].slots) {
      throw Refused(Errc::kInvalidUsage, "slots differ: rank 0 has {}, rank {} has {}",
                    offers[0].slots, r, offers[r].slots);
    }
    if (offers[r].queue_bytes != offers[0].queue_bytes) {
      throw Refused(Errc::kInvalidUsage, "queues differ: rank 0 gave {}, rank {} gave {}",
                    queues_of(offers[0]), r, queues_of(offers[r]));
    }
    if (offers[r].on_device != offers[0].on_device) {
      throw Refused(Errc::kInvalidUsage, "memory of different kinds: rank 0 has {}, rank {} has {}",
                    kind_of(offers[0]), r, kind_of(offers[r]));
    }
  }
}

}  // namespace

// The first of `local` makes the segment and hands it to the others.
void WindowMemory::share_segment(bootstrap::Bootstrap& bootstrap, const std::vector<int>& local,
                                 std::size_t total, ShmBacking backing, Deadline deadline) {
  const bool leads = local.front() == bootstrap.rank();
  std::vector<ServerName> names(static_cast<std::size_t>(bootstrap.size()));
  std::optional<DescriptorServer> server;
  ServerName& mine = names[static_cast<std::size_t>(bootstrap.rank())];
  if (leads) {
    try {
      segment_ = SharedMemory::create(total, backing);
      server.emplace();
      server->name().copy(mine.data(), mine.size());
    } catch (const Error& error) {
      failure_ = error;
    }
  }
  bootstrap.all_gather(std::as_writable_bytes(std::span(names)), sizeof(ServerName), deadline);
  const int leader = local.front();
  const ServerName& name = names[static_cast<std::size_t>(leader)];
  if (name[0] == '\0') {
    if (!failure_.has_value()) {
      failure_ = Error(Errc::kSystem, "rank {} could not make the shared memory", leader);
    }
  } else if (leads) {
    bootstrap::hand_over(*server, segment_->fd(), static_cast<int>(local.size()) - 1, local,
                         bootstrap, deadline);
  } else {
    FileDescriptor fd =
        bootstrap::descriptor_of(leader, std::string(name.begin(), name.end()), deadline);
    try {
      segment_ = SharedMemory::map_once(std::move(fd), total);
    } catch (const Error& error) {
      failure_ = error;
    }
  }
}

WindowMemory WindowMemory::create(bootstrap::Bootstrap& bootstrap,
                                  std::span<const link::PeerReach> reach, const WindowSpec& spec,
                                  ShmBacking backing, Deadline deadline) {
  const auto n = static_cast<std::size_t>(bootstrap.size());
  const auto self = static_cast<std::size_t>(bootstrap.rank());
  std::vector<Offer> offers(n);
  WindowMemory made;
  offers[self] = offer_of(spec, n, made.device_);
  bootstrap.all_gather(std::as_writable_bytes(std::span(offers)), sizeof(Offer), deadline);
  check(offers);

  // The ranks of this host, in their order in the segment.
  std::vector<int> local;
  std::size_t most_bytes = 0;
  for (std::size_t r = 0; r < n; ++r) {
    if (reach[r].local_rank < 0) continue;
    local.push_back(static_cast<int>(r));
    if (offers[r].address == 0 && spec.gpu == nullptr)
      most_bytes = std::max<std::size_t>(most_bytes, offers[r].bytes);
  }
  const std::size_t counters = whole_pages(counters_bytes(n, spec.slots));
  const std::size_t stride = counters + whole_pages(most_bytes);
  if (spec.counters) made.share_segment(bootstrap, local, stride * local.size(), backing, deadline);
  made.parts_.resize(n);
  for (std::size_t r = 0; r < n; ++r) made.parts_[r].bytes = offers[r].bytes;
  if (spec.gpu != nullptr) {
    std::vector<std::byte*> lines(n, nullptr);
    for (std::size_t k = 0; k < local.size() && made.segment_.has_value(); ++k) {
      lines[static_cast<std::size_t>(local[k])] = made.segment_->data() + k * stride;
    }
    if (spec.counters && !made.failure_.has_value()) {
      try {
        made.segment_->reserve(static_cast<std::size_t>(lines[self] - made.segment_->data()),
                               counters);
        made.registration_.emplace(*spec.gpu, *made.segment_);
      } catch (const Error& error) {
        made.failure_ = error;
      }
    }
    made.reached_.resize(n);
    for (std::size_t r = 0; r < n && !made.failure_.has_value(); ++r) {
      Part& part = made.parts_[r];
      part.takes_turns =
          reach[r].process != 0 && offers[r].device.gpu.bytes == spec.gpu->uuid().bytes;
      if (reach[r].local_rank < 0) continue;
      if (!spec.mapped.empty()) {
        part.mapped = true;
        part.data = static_cast<std::byte*>(spec.mapped[r]);
        continue;
      }
      try {
        std::shared_ptr<DevicePart> of_process;
        if (reach[r].process == 0) of_process = published(offers[r].device.number);
        made.reached_[r] = std::make_shared<ReachedPart>(*spec.gpus, *spec.gpu, static_cast<int>(r),
                                                         offers[r].device, std::move(of_process));
      } catch (const Error& error) {
        log::info(log::kP2p, "rank {} reaches the window of rank {} by a link: {}", self, r,
                  error.what());
        if (r == self) made.failure_ = error;
        continue;
      }
      // NOLINTBEGIN(performance-no-int-to-ptr): addresses of the GPU
      part.mapped = true;
      part.data = reinterpret_cast<std::byte*>(made.reached_[r]->data());
      if (!spec.counters) continue;
      part.device_signals = reinterpret_cast<SignalLine*>(made.reached_[r]->counters());
      part.signals = reinterpret_cast<SignalLine*>(lines[r]);
      part.signals_on_device = reinterpret_cast<SignalLine*>(
          made.registration_->on_device() +
          static_cast<std::uint64_t>(lines[r] - made.segment_->data()));
      // NOLINTEND(performance-no-int-to-ptr)
    }
    // Who reaches whom need not be mutual.
    std::vector<std::uint8_t> mapped(n * n);
    for (std::size_t r = 0; r < n; ++r) mapped[self * n + r] = made.parts_[r].mapped ? 1 : 0;
    bootstrap.all_gather(std::as_writable_bytes(std::span(mapped)), n, deadline);
    for (std::size_t r = 0; r < n; ++r) made.parts_[r].served = mapped[r * n + self] == 0;
    return made;
  }
  if (made.failure_.has_value()) return made;
  for (std::size_t k = 0; k < local.size(); ++k) {
    const auto r = static_cast<std::size_t>(local[k]);
    Part& part = made.parts_[r];
    std::byte* const begin = made.segment_->data() + k * stride;
    const bool of_user = offers[r].address != 0;
    // The user's memory is reached by ranks of its process alone.
    if (offers[self].address != 0 && reach[r].process != 0) part.served = true;
    if (of_user && reach[r].process != 0) continue;
    part.mapped = true;
    part.signals = reinterpret_cast<SignalLine*>(begin);
    part.data = of_user
                    // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of this process
                    ? reinterpret_cast<std::byte*>(offers[r].address)
                    : begin + counters;
    if (r != self) continue;
    try {
      made.segment_->reserve(k * stride,
                             counters + (of_user ? 0 : static_cast<std::size_t>(part.bytes)));
    } catch (const Error& error) {
      made.failure_ = error;
    }
  }
  return made;
}

std::optional<WindowMemory::Location> WindowMemory::location(int rank) const {
  const Part& part = parts_[static_cast<std::size_t>(rank)];
  if (!part.mapped || !segment_.has_value() || part.device_signals != nullptr) return std::nullopt;
  const std::byte* const begin = segment_->data();
  if (part.data < begin || part.data >= begin + segment_->size()) return std::nullopt;
  return Location{segment_->fd(), static_cast<std::size_t>(part.data - begin)};
}

void WindowMemory::close_reached() noexcept {
  if (reached_.empty()) return;
  for (Part& part : parts_) part.mapped = false;
  reached_.clear();
}

}  // namespace ropewalk::message
