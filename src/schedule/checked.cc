#include "schedule/checked.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace ropewalk::schedule {

Checked::Checked(Schedule schedule, CheckReport report, int slots)
    : schedule_(std::move(schedule)), report_(std::move(report)), slots_(slots) {}

Checked Checked::from(Schedule schedule, int slots) {
  CheckReport report = check(schedule, slots);
  if (!report.accepted) {
    throw Error(Errc::kInvalidUsage, "the checker refuses the schedule \"{}\" of {} ranks: {}",
                schedule.algorithm, schedule.num_ranks, fmt::join(report.defects, "; "));
  }
  return {std::move(schedule), std::move(report), slots};
}

CheckedSchedules::CheckedSchedules(std::size_t capacity)
    : capacity_(std::max<std::size_t>(1, capacity)) {}

std::shared_ptr<const Checked> CheckedSchedules::get(std::string_view algorithm,
                                                     const Request& request, int slots) {
  const Key key(std::string(algorithm), request.collective, request.num_ranks, request.root,
                request.channels, request.order, request.host_of_rank, slots);
  std::shared_ptr<Entry> entry;
  {
    const Lock lock(mutex_);
    std::shared_ptr<Entry>& slot = entries_[key];
    if (slot == nullptr) slot = std::make_shared<Entry>();
    slot->last_use = ++uses_;
    entry = slot;
    if (entries_.size() > capacity_) evict_oldest();
  }
  // When making fails, the entry stays empty and the next caller tries again.
  const Lock lock(entry->making);
  if (entry->checked == nullptr) {
    entry->checked =
        std::make_shared<const Checked>(Checked::from(compile(algorithm, request), slots));
  }
  return entry->checked;
}

std::size_t CheckedSchedules::size() const {
  const Lock lock(mutex_);
  return entries_.size();
}

void CheckedSchedules::evict_oldest() {
  entries_.erase(std::min_element(entries_.begin(), entries_.end(), [](auto& a, auto& b) {
    return a.second->last_use < b.second->last_use;
  }));
}

}  // namespace ropewalk::schedule
