#include "comm/host_executor.h"

#include <utility>

#include "comm/scaling.h"
#include "executor/note.h"
#include "executor/walker.h"

namespace ropewalk::comm {
namespace {

// Shorter calls fit the nearest cache, whatever they find there.
constexpr std::size_t kColdBytes = std::size_t{16} << 10U;

double seconds_of(std::chrono::steady_clock::time_point time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

}  // namespace

std::unique_ptr<PreparedCall> HostExecutor::prepare(const CollectiveCall& call,
                                                    const Extent& extent,
                                                    std::shared_ptr<const tune::Choice> choice) {
  PreparedCollective& collective = collective_of(*choice);
  auto prepared = std::make_unique<HostCall>(call, extent, std::move(choice), collective);
  const bool by_address = goes_by_address(call, collective);
  if (options_.tuned_slot_bytes > 0) {
    prepared->chunks_ =
        chunk_range(call, extent, prepared->choice(), by_address, options_.tuned_slot_bytes);
  }
  if (by_address) prepared->trial_ = form_trial(call, extent, prepared->choice(), options_.crowded);
  if (prepared->trial_.has_value()) {
    prepared->others_.resize(static_cast<std::size_t>(prepared->trial_->forms() - 1));
  }
  return prepared;
}

PreparedCollective& HostExecutor::collective_of(const tune::Choice& choice) {
  Prepared& prepared = collectives_[choice.schedule.get()];
  if (prepared.collective == nullptr) {
    prepared.given = choice.algorithm == tune::kGivenSchedule;
    prepared.collective = std::make_unique<PreparedCollective>(
        choice.schedule, options_.rank, prepared.given ? nullptr : choice.routed.get(),
        options_.lag_slots);
  }
  return *prepared.collective;
}

HostCall& HostExecutor::in_form(HostCall& prepared, const CollectiveCall& call) {
  if (!prepared.trial().has_value()) return prepared;
  const FormTrial& trial = *prepared.trial();
  const AgreedForms::Shape* shape = form_shape_of(prepared, call);
  if (shape == nullptr || shape->form() == 0) return prepared;
  std::unique_ptr<HostCall>& other = prepared.others_[static_cast<std::size_t>(shape->form() - 1)];
  if (other == nullptr) {
    const std::shared_ptr<const tune::Choice> choice =
        choice_of(prepared.choice(), trial, shape->form());
    other = std::make_unique<HostCall>(call, prepared.extent(), choice, collective_of(*choice));
    other->chosen_ = &prepared;
  }
  return *other;
}

AgreedForms::Shape* HostExecutor::form_shape_of(HostCall& chosen, const CollectiveCall& call) {
  // Calls of other types share the shape, which begins anew where their choice is another one.
  AgreedForms::Shape*& shape = chosen.form_shape_;
  if (shape == nullptr || !shape->serves(chosen.choice(), *chosen.trial())) {
    shape = forms_.of(call, chosen.extent(), chosen.choice(), *chosen.trial());
  }
  return shape;
}

bool HostExecutor::goes_by_address(const CollectiveCall& call,
                                   const PreparedCollective& collective) const {
  return collective.all_by_address() && !scaling_of(call, options_.num_ranks).scaled;
}

ChunkReport HostExecutor::chunks_of(const HostCall& prepared, const CollectiveCall& call) const {
  if (const auto tuned = chunks_.report(call, prepared.extent())) return *tuned;
  ChunkReport report;
  report.bytes = report.start_bytes =
      chosen_chunk(prepared.choice(), goes_by_address(call, prepared.collective()));
  report.tuned = prepared.chunks().has_value();
  report.decides = report.tuned && options_.rank == prepared.chunks()->decider;
  return report;
}

FormReport HostExecutor::forms_of(const HostCall& prepared, const CollectiveCall& call) const {
  FormReport report;
  if (!prepared.trial().has_value()) return report;
  if (const auto tried = forms_.report(call, prepared.extent())) return *tried;
  report.adapts = true;
  report.trial = *prepared.trial();
  report.decides = options_.rank == prepared.trial()->decider;
  return report;
}

void HostExecutor::arm(HostCall& prepared, const CollectiveCall& call, bool in_place,
                       const executor::CallTag& tag) {
  team_.history().record(tag);
  extent_ = prepared.extent();
  if (prepared.as_chosen().trial().has_value()) [[unlikely]] {
    arm_form(prepared, call, in_place, tag);
    return;
  }
  if (prepared.chunks().has_value()) [[unlikely]] {
    arm_chunks(prepared, call, in_place, tag);
  } else {
    prepared.collective().arm(call, in_place, tag, prepared.choice(), options_.num_ranks,
                              options_.check_tags);
  }
  note_buffers(prepared.collective().call());
}

void HostExecutor::arm_chunks(const HostCall& prepared, const CollectiveCall& call, bool in_place,
                              const executor::CallTag& tag) {
  AgreedChunks::Shape* shape =
      chunks_.of(call, prepared.extent(), prepared.choice(), *prepared.chunks());
  const auto now = std::chrono::steady_clock::now();
  if (shape != nullptr) shape->begins(seconds_of(now), options_.rank);
  PreparedCollective& collective = prepared.collective();
  collective.arm(call, in_place, shape == nullptr ? tag : executor::with_note(tag, shape->note()),
                 prepared.choice(), options_.num_ranks, options_.check_tags,
                 shape == nullptr ? 0 : shape->chunk_bytes());
  if (shape == nullptr) return;
  team_.listen(&collective.call().tag);
  tuned_ = {shape, nullptr, &collective, now};
}

void HostExecutor::arm_form(HostCall& prepared, const CollectiveCall& call, bool in_place,
                            const executor::CallTag& tag) {
  AgreedForms::Shape* shape = form_shape_of(prepared.as_chosen(), call);
  PreparedCollective& collective = prepared.collective();
  collective.arm(call, in_place, tag, prepared.choice(), options_.num_ranks, options_.check_tags);
  executor::Call& armed = collective.call();
  note_buffers(armed);
  if (shape == nullptr) return;
  const auto now = std::chrono::steady_clock::now();
  const bool cached = !armed.cold_input && !armed.cold_output;
  armed.tag = executor::with_note(tag, shape->begins(seconds_of(now), cached, options_.rank));
  team_.listen(&armed.tag);
  tuned_ = {nullptr, shape, &collective, now};
}

void HostExecutor::completed_tuned() {
  const Tuned tuned = std::exchange(tuned_, Tuned{});
  team_.listen(nullptr);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - tuned.start;
  const std::uint8_t note = executor::note_of(tuned.collective->call().tag);
  if (tuned.chunks != nullptr) {
    tuned.chunks->completed(note, took.count(), options_.rank);
  } else {
    tuned.form->completed(note, took.count(), options_.rank);
  }
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
  auto& host_call = static_cast<HostCall&>(prepared);
  arm(host_call, call, in_place, tag);
  return walk(host_call.collective());
}

void HostExecutor::forget_schedules() {
  std::erase_if(collectives_, [](const auto& entry) { return entry.second.given; });
}

}  // namespace ropewalk::comm
