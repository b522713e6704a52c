#include "capi/nccl/one_sided.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace ropewalk::nccl {

using message::OperationKind;
using message::OperationSpec;

void OneSided::open() {
  if (counters_ != nullptr) return;
  message::WindowSpec spec;
  spec.slots = counts_.contexts * counts_.indices;
  try {
    counters_ = &comm_.create_window(spec, device_);
  } catch (const message::Refused& refused) {
    refusal_ = refused.what();
    throw;
  }
}

message::Window& OneSided::add(void* buffer, std::size_t bytes, std::vector<void*> mapped) {
  if (!refusal_.empty()) throw message::Refused(Errc::kInvalidUsage, "{}", refusal_);
  open();
  message::WindowSpec spec;
  spec.registers = true;
  spec.counters = false;
  spec.slots = 0;
  spec.memory = buffer;
  spec.bytes = bytes;
  spec.mapped = std::move(mapped);
  return comm_.create_window(spec);
}

OperationSpec OneSided::of_counter(OperationKind kind, int peer, int index, int context,
                                   std::uint64_t count) const {
  if (index < 0 || index >= counts_.indices) {
    throw Error(Errc::kInvalidArgument, "sigIdx: {} is outside 0 to {} (config: numRmaSig)", index,
                counts_.indices - 1);
  }
  if (context < 0 || context >= counts_.contexts) {
    throw Error(Errc::kInvalidArgument, "ctx: {} is outside 0 to {} (config: numRmaCtx)", context,
                counts_.contexts - 1);
  }
  if (!refusal_.empty()) throw Error(Errc::kInvalidUsage, "there are no signals: {}", refusal_);
  if (counters_ == nullptr) {
    throw Error(Errc::kInvalidUsage,
                "there are no signals before the communicator's first ncclCommWindowRegister (or "
                "with rmaEagerInit = 1 in its configuration)");
  }
  OperationSpec spec;
  spec.kind = kind;
  spec.window = counters_;
  spec.peer = peer;
  spec.slot = context * counts_.indices + index;
  spec.count = count;
  return spec;
}

void OneSided::put(std::vector<OperationSpec>& specs, message::Window& window, int peer,
                   std::size_t offset, const void* source, std::size_t bytes, int index,
                   int context) {
  const OperationSpec signal = of_counter(OperationKind::kSignal, peer, index, context, 1);
  OperationSpec spec;
  spec.window = &window;
  spec.peer = peer;
  spec.offset = offset;
  spec.bytes = bytes;
  spec.source = static_cast<const std::byte*>(source);
  specs.push_back(spec);
  const bool is_rank = peer >= 0 && peer < window.size();
  if (is_rank && !window.part(peer).mapped && counters_->part(peer).mapped) {
    spec.kind = OperationKind::kFlush;
    specs.push_back(spec);
  }
  specs.push_back(signal);
}

void OneSided::signal(std::vector<OperationSpec>& specs, int peer, int index, int context) {
  specs.push_back(of_counter(OperationKind::kSignal, peer, index, context, 1));
}

void OneSided::wait(std::vector<OperationSpec>& specs, int peer, int index, int context,
                    std::uint64_t count) {
  specs.push_back(of_counter(OperationKind::kWaitSignal, peer, index, context, count));
}

void OneSidedCalls::run(OneSided& whose, const std::vector<OperationSpec>& specs,
                        comm::DeviceStream stream) {
  whose.comm().enqueue(specs, stream);
}

void OneSidedCalls::add(OneSided& whose, const std::vector<OperationSpec>& specs,
                        comm::DeviceStream stream) {
  for (const OperationSpec& spec : specs) whose.comm().check(spec);
  for (const OperationSpec& spec : specs) {
    std::vector<Entry>& entries = spec.kind == OperationKind::kWaitSignal ? waits_ : puts_;
    const auto found = std::ranges::find_if(entries, [&](const Entry& entry) {
      return entry.comm == &whose.comm() && entry.stream == stream;
    });
    Entry& entry = found != entries.end() ? *found : entries.emplace_back();
    entry.comm = &whose.comm();
    entry.stream = stream;
    entry.specs.push_back(spec);
  }
}

void OneSidedCalls::enqueue(std::vector<Entry>& entries) {
  for (const Entry& entry : std::exchange(entries, {})) {
    entry.comm->enqueue(entry.specs, entry.stream);
  }
}

void OneSidedCalls::clear() noexcept {
  puts_.clear();
  waits_.clear();
}

}  // namespace ropewalk::nccl
