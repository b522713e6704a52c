#include "profiler/recorder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "core/file_pattern.h"

namespace ropewalk::profiler {
namespace {

using nlohmann::json;

std::int64_t now_ns() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

json text_or_null(const std::string& text) { return text.empty() ? json() : json(text); }
json rank_or_null(int rank) { return rank < 0 ? json() : json(rank); }
json time_or_null(std::int64_t ns) { return ns == 0 ? json() : json(ns); }

}  // namespace

Recorder::Record* Recorder::find(Id id) {
  if (records_.empty() || id < records_.front().id || id > last_) return nullptr;
  return &records_[id - records_.front().id];
}

Recorder::Id Recorder::begin(const Operation& operation) {
  const Lock lock(mutex_);
  if (communicator_.rank < 0) communicator_.rank = operation.rank;
  if (!communicator_.id.has_value()) communicator_.id = operation.communicator;
  if (records_.size() == capacity_) records_.pop_front();
  Record record;
  record.id = ++last_;
  record.call = operation.message ? 0 : ++calls_;
  record.operation = operation;
  record.scheduled_ns = now_ns();
  records_.push_back(std::move(record));
  return last_;
}

void Recorder::start_part(Id id, std::optional<std::uint64_t> gpu_ns) {
  const Lock lock(mutex_);
  Record* record = find(id);
  if (record == nullptr) return;
  if (record->started_ns == 0) record->started_ns = now_ns();
  record->completed_ns = 0;  // a later part than those that have ended
  ++record->open_parts;
  if (gpu_ns.has_value() && (record->gpu_start == 0 || *gpu_ns < record->gpu_start)) {
    record->gpu_start = *gpu_ns;
  }
}

void Recorder::stop_on_gpu(Id id, std::uint64_t gpu_ns) {
  const Lock lock(mutex_);
  if (Record* record = find(id)) record->gpu_stop = std::max(record->gpu_stop, gpu_ns);
}

void Recorder::stop_part(Id id) {
  const Lock lock(mutex_);
  Record* record = find(id);
  if (record == nullptr || record->open_parts == 0 || --record->open_parts > 0) return;
  record->completed_ns = now_ns();
  // The GPU's clock is exact; the host only hears of a kernel's start and end.
  if (record->gpu_start != 0 && record->gpu_stop > record->gpu_start) {
    const auto duration = static_cast<std::int64_t>(record->gpu_stop - record->gpu_start);
    record->started_ns = std::max(record->scheduled_ns, record->completed_ns - duration);
  }
}

int Recorder::rank() const {
  const Lock lock(mutex_);
  return std::max(0, communicator_.rank);
}

std::string Recorder::communicator() const {
  const Lock lock(mutex_);
  return fmt::format("{:016x}", communicator_.id.value_or(0));
}

bool Recorder::has_rank() const {
  const Lock lock(mutex_);
  return communicator_.rank >= 0;
}

std::string Recorder::report(std::size_t newest) const {
  const Lock lock(mutex_);
  json records = json::array();
  for (std::size_t i = records_.size() - std::min(newest, records_.size()); i < records_.size();
       ++i) {
    const Record& record = records_[i];
    const char* state = record.completed_ns != 0 ? "completed"
                        : record.started_ns != 0 ? "started"
                                                 : "scheduled";
    records.push_back({{"id", record.id},
                       {"call", record.call == 0 ? json() : json(record.call)},
                       {"operation", record.operation.name},
                       {"count", record.operation.count},
                       {"type", text_or_null(record.operation.type)},
                       {"op", json()},
                       {"root", rank_or_null(record.operation.root)},
                       {"peer", rank_or_null(record.operation.peer)},
                       {"algorithm", text_or_null(record.operation.algorithm)},
                       {"protocol", text_or_null(record.operation.protocol)},
                       {"memory", "GPU"},
                       {"state", state},
                       {"scheduled_ns", record.scheduled_ns},
                       {"started_ns", time_or_null(record.started_ns)},
                       {"completed_ns", time_or_null(record.completed_ns)}});
  }
  const int rank = std::max(0, communicator_.rank);
  const json report = {{"schema", "ropewalk-calls"},
                       {"version", 1},
                       {"communicator", fmt::format("{:016x}", communicator_.id.value_or(0))},
                       {"rank", rank},
                       {"ranks", std::max(communicator_.num_ranks, rank + 1)},
                       {"host", short_host_name()},
                       {"process", getpid()},
                       {"written_ns", now_ns()},
                       {"begun", last_},
                       {"failure", json()},
                       {"waiting", json()},
                       {"records", std::move(records)}};
  return report.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace ropewalk::profiler
