#include "netplugin/comm.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <utility>

#include "core/log.h"
#include "core/process_memory.h"

namespace ropewalk::netplugin {
namespace {

// A request's number: its kind, a generation of 32 bits, its index in the connection (8 bits), and
// the connection's index in the table.
constexpr unsigned kRequestIndexBits = 8;

std::uint32_t generation_of(const void* request) noexcept {
  return static_cast<std::uint32_t>(number_of(request) >> (kIndexBits + kRequestIndexBits));
}
std::size_t index_of(const void* request) noexcept {
  return number_of(request) >> kIndexBits & ((1U << kRequestIndexBits) - 1);
}

// Where the generations of a connection's requests begin: far from those of one before it in the
// same index.
std::uint32_t first_generation() noexcept {
  static std::atomic<std::uint32_t> next = 0;
  return next.fetch_add(0x9e3779b1, std::memory_order_relaxed);
}

// `memory` may be null.
transport::ReceiveBuffer buffer_of(const Part& part, const Memory* memory) noexcept {
  return {part.data, part.bytes, part.tag,
          memory == nullptr ? nullptr : memory->registration.get()};
}

}  // namespace

Comm& comm_of_request(const Comms& comms, const void* request) {
  Comm* comm = nullptr;
  if (kind_of(request) == Kind::kRequest) comm = comms.find_at(number_of(request) & kIndexMask);
  if (comm == nullptr) {
    throw Error(Errc::kInvalidArgument, "{} is not a request of an open connection", request);
  }
  return *comm;
}

Comm::Comm(Connection connection, Memories& memories, std::string name, const void* context,
           StallWatch::Now now)
    : connection_(std::move(connection)),
      all_memories_(memories),
      name_(std::move(name)),
      context_(context),
      stall_(now) {
  const std::uint32_t first = first_generation();
  for (InFlight& entry : in_flight_) entry.generation = first;
}

Comm::~Comm() {
  const Lock lock(mutex_);
  // Requests first: their destructors return when nothing touches the memory any more.
  for (InFlight& entry : in_flight_) entry.request.reset();
  for (void* memory : memories_) all_memories_.remove(memory);
}

void* Comm::register_memory(void* data, std::size_t bytes, transport::MemoryKind kind) {
  if (kind == transport::MemoryKind::kHost && !is_mapped(data, bytes)) {
    throw Error(Errc::kInvalidArgument,
                "{}: a registration of {} bytes at {}: that is not memory of this process", name_,
                bytes, data);
  }
  return add_memory(
      data, bytes,
      std::visit([&](auto& end) { return end->register_memory(data, bytes, kind); }, connection_));
}

void* Comm::register_dma_buf(void* data, std::size_t bytes, const transport::DmaBuf& buffer) {
  return add_memory(
      data, bytes,
      std::visit([&](auto& end) { return end->register_dma_buf(data, bytes, buffer); },
                 connection_));
}

void* Comm::add_memory(void* data, std::size_t bytes,
                       std::unique_ptr<transport::Registration> registration) {
  auto memory = std::make_unique<Memory>();
  memory->comm = handle_;
  memory->base = number_of(data);
  memory->bytes = bytes;
  memory->registration = std::move(registration);
  const Lock lock(mutex_);
  memories_.reserve(memories_.size() + 1);
  void* handle = all_memories_.add(std::move(memory));
  memories_.push_back(handle);
  return handle;
}

void Comm::deregister(void* handle) {
  std::unique_ptr<Memory> ended;  // outside of the lock
  const Lock lock(mutex_);
  const auto found = std::find(memories_.begin(), memories_.end(), handle);
  if (found == memories_.end()) {
    throw Error(Errc::kInvalidArgument, "{}: {} is not a registration of this connection", name_,
                handle);
  }
  Memory* memory = all_memories_.find(handle);
  if (memory->in_flight > 0) {
    for (std::size_t index = 0; index < kMostInFlight; ++index) {
      const auto& used = in_flight_[index].memories;
      if (std::find(used.begin(), used.end(), memory) != used.end()) release(index);
    }
  }
  memories_.erase(found);
  ended = all_memories_.remove(handle);
}

Memory& Comm::memory_of(const Part& part) {
  Memory* memory = all_memories_.find(part.memory);
  if (memory == nullptr || memory->comm != handle_) {
    throw Error(Errc::kInvalidArgument,
                "{}: a message of {} bytes at {}: its memory ({}) is not registered for this "
                "connection",
                name_, part.bytes, part.data, part.memory);
  }
  const std::uint64_t offset = number_of(part.data) - memory->base;  // wraps below the base
  if (offset > memory->bytes || part.bytes > memory->bytes - offset) {
    throw Error(Errc::kInvalidArgument,
                "{}: a message of {} bytes at {} is not within the {} bytes registered at {:#x}",
                name_, part.bytes, part.data, memory->bytes, memory->base);
  }
  return *memory;
}

void Comm::throw_if_broken() {
  if (broken_) throw KnownError(broken_->code(), broken_->what());
}

void Comm::broke(const Error& error) {
  const Error named(error.code(), name_ + ": " + error.what());
  // A wrong argument ends nothing but the call.
  if (error.code() != Errc::kInvalidArgument) broken_ = named;
  throw Error(named);
}

void Comm::waits() {
  if (!stall_.begins()) return;
  log::info(log::kNet, "{}: nothing has moved for {} s: {}", name_, StallWatch::kAfter.count(),
            std::visit([](const auto& end) { return end->describe(); }, connection_));
}

void* Comm::keep(std::unique_ptr<transport::Request> request, std::span<Memory* const> memories) {
  const auto index = static_cast<std::size_t>(std::countr_zero(free_));
  InFlight& entry = in_flight_[index];
  free_ &= free_ - 1;
  ++entry.generation;
  entry.request = std::move(request);
  entry.count = memories.size();
  for (std::size_t i = 0; i < memories.size(); ++i) {
    entry.memories[i] = memories[i];
    if (memories[i] != nullptr) ++memories[i]->in_flight;
  }
  return handle_of(std::uint64_t{static_cast<std::uint8_t>(Kind::kRequest)} << 60 |
                   std::uint64_t{entry.generation} << (kIndexBits + kRequestIndexBits) |
                   std::uint64_t{index} << kIndexBits | (number_of(handle_) & kIndexMask));
}

void Comm::release(std::size_t index) {
  InFlight& entry = in_flight_[index];
  entry.request.reset();
  for (std::size_t i = 0; i < entry.count; ++i) {
    if (entry.memories[i] != nullptr) --entry.memories[i]->in_flight;
    entry.memories[i] = nullptr;
  }
  free_ |= std::uint64_t{1} << index;
}

void* Comm::send(const Part& part) {
  const Lock lock(mutex_);
  throw_if_broken();
  auto* sender = std::get_if<0>(&connection_);
  if (sender == nullptr) throw Error(Errc::kInvalidArgument, "{} does not send", name_);
  Memory* memory = part.bytes == 0 ? nullptr : &memory_of(part);
  if (full()) return nullptr;
  try {
    auto request = (*sender)->send(part.data, part.bytes, part.tag,
                                   memory == nullptr ? nullptr : memory->registration.get());
    if (!request) {
      waits();
      return nullptr;
    }
    stall_.moved();
    return keep(std::move(request), {&memory, 1});
  } catch (const Error& error) {
    broke(error);
  }
}

void* Comm::receive(std::span<const Part> parts) {
  const Lock lock(mutex_);
  throw_if_broken();
  auto* receiver = std::get_if<1>(&connection_);
  if (receiver == nullptr) throw Error(Errc::kInvalidArgument, "{} does not receive", name_);
  std::array<transport::ReceiveBuffer, kGroup> buffers;
  std::array<Memory*, kGroup> memories{};
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].bytes > 0) memories[i] = &memory_of(parts[i]);
    buffers[i] = buffer_of(parts[i], memories[i]);
  }
  if (full()) return nullptr;
  try {
    auto request = (*receiver)->receive(std::span(buffers).first(parts.size()));
    return request ? keep(std::move(request), std::span(memories).first(parts.size())) : nullptr;
  } catch (const Error& error) {
    broke(error);
  }
}

void* Comm::flush(std::span<const Part> parts) {
  const Lock lock(mutex_);
  throw_if_broken();
  auto* receiver = std::get_if<1>(&connection_);
  if (receiver == nullptr) throw Error(Errc::kInvalidArgument, "{} does not receive", name_);
  // NCCL 2.12 to 2.19 pass the memory of a later message than the received one. All earlier
  // received data must be flushed, so the addresses are not checked.
  std::array<transport::ReceiveBuffer, kGroup> buffers;
  std::array<Memory*, kGroup> memories{};
  for (std::size_t i = 0; i < parts.size(); ++i) {
    Memory* memory = all_memories_.find(parts[i].memory);
    if (memory != nullptr && memory->comm == handle_) memories[i] = memory;
    buffers[i] = buffer_of(parts[i], memories[i]);
  }
  try {
    auto request = (*receiver)->flush(std::span(buffers).first(parts.size()));
    // NCCL has no code for retrying a flush, and it never starts so many that no index is free.
    if (request == nullptr || request->test().has_value()) return nullptr;
    if (full())
      throw Error(Errc::kInvalidUsage, "{} requests are in flight already", kMostInFlight);
    return keep(std::move(request), std::span(memories).first(parts.size()));
  } catch (const Error& error) {
    broke(error);
  }
}

Outcome Comm::test(void* request) {
  const Lock lock(mutex_);
  const std::size_t index = index_of(request);
  if (index >= kMostInFlight || in_flight_[index].generation != generation_of(request) ||
      in_flight_[index].request == nullptr) {
    throw Error(Errc::kInvalidArgument, "{}: {} is not a request in flight", name_, request);
  }
  throw_if_broken();
  InFlight& entry = in_flight_[index];
  Outcome outcome;
  try {
    outcome.done = entry.request->test().has_value();
  } catch (const Error& error) {
    broke(error);
  }
  if (!outcome.done) {
    waits();
    return outcome;
  }
  stall_.moved();
  const std::span<const std::size_t> sizes = entry.request->sizes();
  outcome.count = std::min(sizes.size(), outcome.bytes.size());
  std::copy_n(sizes.begin(), outcome.count, outcome.bytes.begin());
  release(index);
  return outcome;
}

}  // namespace ropewalk::netplugin
