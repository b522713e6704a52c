#include "comm/call_report.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "comm/communicator.h"
#include "core/error.h"
#include "core/file_pattern.h"
#include "core/log.h"
#include "core/replace_file.h"

namespace ropewalk::comm {
namespace {

using nlohmann::json;

constexpr mode_t kFileMode = 0644;

json text_or_null(const std::string& text) { return text.empty() ? json() : json(text); }
json rank_or_null(int rank) { return rank < 0 ? json() : json(rank); }
json time_or_null(std::int64_t ns) { return ns == 0 ? json() : json(ns); }

std::string_view name(trace::CallRecords::State state) {
  constexpr std::array<std::string_view, 3> kNames = {"scheduled", "started", "completed"};
  return kNames[static_cast<std::size_t>(state)];
}

json describe(const std::optional<std::vector<trace::SentBytes>>& sent) {
  if (!sent.has_value()) return {};
  json all = json::array();
  for (const trace::SentBytes& to : *sent) all.push_back({{"to", to.peer}, {"bytes", to.bytes}});
  return all;
}

json describe(const trace::CallRecords::Record& record) {
  return {{"id", record.id},
          {"call", record.call == 0 ? json() : json(record.call)},
          {"operation", record.operation},
          {"count", record.count},
          {"type", text_or_null(record.type)},
          {"op", text_or_null(record.op)},
          {"root", rank_or_null(record.root)},
          {"peer", rank_or_null(record.peer)},
          {"algorithm", text_or_null(record.algorithm)},
          {"protocol", text_or_null(record.protocol)},
          {"stream", record.on_device ? json(fmt::format("{}", record.stream)) : json()},
          {"chunk_bytes", record.chunk_bytes == 0 ? json() : json(record.chunk_bytes)},
          {"links", describe(record.sent)},
          {"memory", record.on_device ? "GPU" : "host"},
          {"timed", record.timed},
          {"state", name(record.state)},
          {"scheduled_ns", record.scheduled_ns},
          {"started_ns", time_or_null(record.started_ns)},
          {"completed_ns", time_or_null(record.completed_ns)}};
}

json describe(const std::vector<executor::Traffic::Entry>& links) {
  json all = json::array();
  for (const executor::Traffic::Entry& link : links) {
    all.push_back({{"to", link.peer}, {"over", link.over}, {"bytes", link.bytes}});
  }
  return all;
}

json describe(const std::optional<Stall::State>& stall) {
  if (!stall.has_value()) return {};
  return {{"for", stall->peers}, {"in", stall->operation}, {"seconds", stall->seconds}};
}

}  // namespace

std::size_t records_kept(const Config& config) {
  if (config.text(Setting::kTrace) == "off") return 0;
  return std::bit_ceil(static_cast<std::size_t>(config.integer(Setting::kTraceRecords)));
}

std::string call_report(const Communicator& comm, std::size_t newest) {
  json records = json::array();
  for (const trace::CallRecords::Record& record : comm.records().read(newest)) {
    records.push_back(describe(record));
  }
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  json report = {
      {"schema", "ropewalk-calls"},
      {"version", 1},
      {"communicator", fmt::format("{:016x}", comm.identity())},
      {"rank", comm.rank()},
      {"ranks", comm.size()},
      {"host", short_host_name()},
      {"process", getpid()},
      {"written_ns", std::chrono::duration_cast<std::chrono::nanoseconds>(now).count()},
      {"begun", comm.records().num_begun()},
      {"failure", comm.failure().broken() ? json(comm.failure().error().what()) : json()},
      {"waiting", describe(comm.stall().now())},
      {"links", describe(comm.traffic().read())},
      {"records", std::move(records)}};
  // Names of schedules are the users': what is no UTF-8 in them must not cost the report.
  return report.dump(-1, ' ', false, json::error_handler_t::replace);
}

void write_call_report(const Communicator& comm, std::string_view pattern) noexcept {
  try {
    const std::array<std::pair<char, std::string>, 2> letters = {
        {{'r', std::to_string(comm.rank())}, {'c', fmt::format("{:016x}", comm.identity())}}};
    const std::string path = expand_file_pattern("TRACE_FILE", pattern, letters);
    if (const int error = replace_file(path, call_report(comm), kFileMode); error != 0) {
      log::warn(
          "rank {}: the records of its calls (setting ROPEWALK_TRACE_FILE) were not written "
          "to {}: {}",
          comm.rank(), path, std::strerror(error));
    }
  } catch (const std::exception& error) {
    log::warn("rank {}: the records of its calls were not written: {}", comm.rank(), error.what());
  }
}

}  // namespace ropewalk::comm
