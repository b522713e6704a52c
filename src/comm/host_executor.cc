#include "comm/host_executor.h"

#include <utility>

#include "executor/walker.h"

namespace ropewalk::comm {
namespace {

// Shorter calls fit the nearest cache, whatever they find there.
constexpr std::size_t kColdBytes = std::size_t{16} << 10U;

}  // namespace

std::unique_ptr<PreparedCall> HostExecutor::prepare(const CollectiveCall& call,
                                                    const Extent& extent,
                                                    std::shared_ptr<const tune::Choice> choice) {
  Prepared& prepared = collectives_[choice->schedule.get()];
  if (prepared.collective == nullptr) {
    prepared.given = choice->algorithm == tune::kGivenSchedule;
    prepared.collective = std::make_unique<PreparedCollective>(
        choice->schedule, options_.rank, prepared.given ? nullptr : choice->routed.get(),
        options_.lag_slots);
  }
  return std::make_unique<HostCall>(call, extent, std::move(choice), *prepared.collective);
}

void HostExecutor::arm(const HostCall& prepared, const CollectiveCall& call, bool in_place,
                       const executor::CallTag& tag) {
  prepared.collective().arm(call, in_place, tag, prepared.choice(), options_.num_ranks,
                            options_.check_tags);
  team_.history().record(tag);
  extent_ = prepared.extent();
  note_buffers(prepared.collective().call());
}

void HostExecutor::note_buffers(executor::Call& call) noexcept {
  call.cold_input = call.cold_output = false;
  if (extent_.input_bytes + extent_.output_bytes < kColdBytes) return;
  call.cold_output = !warm_.touch(call.output, extent_.output_bytes);
  call.cold_input =
      call.in_place ? call.cold_output : !warm_.touch(call.input, extent_.input_bytes);
}

bool HostExecutor::run(PreparedCall& prepared, const CollectiveCall& call, bool in_place,
                       const executor::CallTag& tag, DeviceStream /*stream*/) {
  const auto& host_call = static_cast<const HostCall&>(prepared);
  arm(host_call, call, in_place, tag);
  return walk(host_call.collective());
}

bool HostExecutor::walk(PreparedCollective& collective) {
  bool done = true;
  for (executor::Strand& strand : collective.strands()) {
    done &= executor::walk(team_, strand, collective.call());
  }
  return done;
}

void HostExecutor::forget_schedules() {
  std::erase_if(collectives_, [](const auto& entry) { return entry.second.given; });
}

}  // namespace ropewalk::comm
