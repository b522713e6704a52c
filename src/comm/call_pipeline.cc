#include "comm/call_pipeline.h"

#include <utility>

#include "core/error.h"
#include "core/log.h"

namespace ropewalk::comm {

CallPipeline::CallPipeline(tune::Tuner tuner, Executor& executor, int rank, int num_ranks)
    : tuner_(std::move(tuner)), executor_(executor), rank_(rank), num_ranks_(num_ranks) {}

CallPipeline::~CallPipeline() { forget_calls(); }

void CallPipeline::plan_in_background(CallAgreement& agreement, bool on_device) {
  agreement_ = &agreement;
  on_device_ = on_device;
  tuner_.plan_in_background(
      [&agreement, on_device](Collective collective, int root, std::uint64_t digest) {
        agreement.ready({on_device, collective, root}, digest);
      });
}

void CallPipeline::begin_new(std::uint64_t number) {
  for (const auto& [subject, value] : agreement_->take(on_device_, number)) {
    if (subject.proposal != 0) {
      begin_scale(tune::unpacked_scale(value), number);
      continue;
    }
    tuner_.adopt(subject.collective, subject.root);
    log::info(log::kTuning,
              "rank {}: plans for {} from root {} that took long are in use from call {} on", rank_,
              name(subject.collective), subject.root, agreement_->first_call(subject));
  }
  forget_calls();
}

void CallPipeline::adapt_hybrid(CallAgreement& agreement, const tune::HybridLinks& links) {
  agreement_ = &agreement;
  on_device_ = true;
  if (rank_ == 0) hybrid_.emplace(links);
}

void CallPipeline::measured(const tune::HybridTimes& times) {
  const std::optional<double> scale = hybrid_->measured(times);
  if (scale.has_value()) agreement_->propose(true, tune::packed_scale(*scale));
}

void CallPipeline::begin_scale(double scale, std::uint64_t number) {
  if (hybrid_.has_value()) hybrid_->begins(scale);
  if (!tuner_.scale_hybrid(scale)) return;
  log::info(log::kTuning,
            "rank {}: the host's memory carries {:.3g} times what was measured first beside links "
            "between GPUs: operations without a root are split anew from call {} on",
            rank_, scale, number);
}

void CallPipeline::replace(std::unique_ptr<PreparedCall>& kept, const CollectiveCall& call) {
  const Extent extent = extent_of(call, rank_, num_ranks_);
  std::unique_ptr<PreparedCall> next = executor_.prepare(
      call, extent, tuner_.choose(call.collective, call.root, call.count * extent.element_bytes));
  std::swap(kept, next);
  if (next != nullptr) executor_.retire(std::move(next));
  if (rank_ == 0) sizes_log_.first_call(tuner_, call.collective, call.root, num_ranks_);
}

void CallPipeline::use_schedule(const std::shared_ptr<const schedule::Checked>& checked) {
  const int channels = checked->schedule().num_channels();
  if (channels > executor_.max_channels()) {
    throw Error(Errc::kInvalidArgument,
                "the schedule has {} channels, the communicator {} (setting ROPEWALK_CHANNELS)",
                channels, executor_.max_channels());
  }
  forget_calls();
  executor_.forget_schedules();
  tuner_.use(checked);
}

void CallPipeline::forget_schedules() {
  forget_calls();
  executor_.forget_schedules();
  tuner_.forget();
}

void CallPipeline::forget_calls() {
  for (std::unique_ptr<PreparedCall>& kept : kept_) {
    if (kept != nullptr) executor_.retire(std::move(kept));
  }
}

}  // namespace ropewalk::comm
