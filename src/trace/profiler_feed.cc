#include "trace/profiler_feed.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/log.h"

namespace ropewalk::trace {
namespace {

constexpr std::chrono::milliseconds kFeedPeriod{1};
constexpr std::size_t kBegunMeanwhile = 64;
constexpr int kMostReads = 4;

// "all_reduce" to "AllReduce"; NCCL writes AlltoAll and Recv.
std::string function_of(const std::string& operation) {
  if (operation == "all_to_all") return "AlltoAll";
  if (operation == "receive") return "Recv";
  if (operation == "barrier") return "AllReduce";
  std::string name;
  bool upper = true;
  for (const char c : operation) {
    if (c == '_') {
      upper = true;
      continue;
    }
    name += upper ? static_cast<char>(std::toupper(static_cast<unsigned char>(c))) : c;
    upper = false;
  }
  return name;
}

// "float32" to "ncclFloat32", "float8_e4m3" to "ncclFloat8e4m3".
std::string type_of(const std::string& type) {
  if (type.empty()) return "ncclInt8";
  std::string name = "nccl";
  for (const char c : type) {
    if (c != '_') name += c;
  }
  name[4] = static_cast<char>(std::toupper(static_cast<unsigned char>(name[4])));
  return name;
}

// NCCL's names, of which readers know no others.
std::string algorithm_of(const std::string& algorithm) {
  return algorithm.find("tree") == std::string::npos ? "RING" : "TREE";
}

// Host memory has none: it counts as NCCL's protocol without flags.
std::string protocol_of(const std::string& protocol) {
  std::string upper = protocol.empty() ? "simple" : protocol;
  for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return upper;
}

ProfiledOperation operation_of(const CallRecords::Record& record) {
  ProfiledOperation operation;
  operation.message = record.peer >= 0;
  operation.function = function_of(record.operation);
  operation.number = record.call;
  operation.count = record.count;
  operation.type = type_of(record.type);
  operation.root_or_peer = operation.message ? record.peer : std::max(record.root, 0);
  operation.algorithm = algorithm_of(record.algorithm);
  operation.protocol = protocol_of(record.protocol);
  return operation;
}

}  // namespace

ProfiledRecords::~ProfiledRecords() {
  for (auto& [id, open] : open_) context_.end(open.events);
}

std::vector<CallRecords::Record> ProfiledRecords::read_from(CallRecords::Id from) const {
  std::size_t newest = records_.num_begun() - from + 1;
  for (int attempt = 1;; ++attempt) {
    std::vector<CallRecords::Record> read = records_.read(newest);
    const std::size_t wanted = records_.num_begun() - from + 1;
    // Others may have begun meanwhile, in place of which the oldest are missing.
    const bool all = wanted <= newest || (!read.empty() && read.front().id <= from);
    if (all || attempt == kMostReads) return read;
    newest = 2 * wanted + kBegunMeanwhile;
  }
}

void ProfiledRecords::tell() {
  const CallRecords::Id begun = records_.num_begun();
  if (begun == seen_ && open_.empty()) return;
  const CallRecords::Id from = open_.empty() ? seen_ + 1 : open_.begin()->first;
  const std::vector<CallRecords::Record> news = read_from(from);
  // Those that were overwritten have no end.
  const CallRecords::Id oldest = news.empty() ? begun + 1 : news.front().id;
  while (!open_.empty() && open_.begin()->first < oldest) {
    context_.end(open_.begin()->second.events);
    open_.erase(open_.begin());
  }
  for (const CallRecords::Record& record : news) {
    auto at = open_.find(record.id);
    if (at == open_.end()) {
      if (record.id <= seen_) continue;  // over
      at = open_.emplace(record.id, Open{context_.begin(operation_of(record)), false}).first;
      seen_ = record.id;
    }
    go_on(record, at->second);
    // Of an operation whose times are not known, it is all that can be told.
    if (record.timed && record.state != CallRecords::State::kCompleted) continue;
    context_.end(at->second.events);
    open_.erase(at);
  }
}

void ProfiledRecords::go_on(const CallRecords::Record& record, Open& open) noexcept {
  if (!open.started && record.started_ns != 0) {
    context_.begin_kernel(open.events, static_cast<std::uint64_t>(record.started_ns));
    open.started = true;
  }
  if (record.completed_ns != 0) {
    context_.end_kernel(open.events, static_cast<std::uint64_t>(record.completed_ns));
  }
}

ProfilerFeed::~ProfilerFeed() {
  std::thread thread;
  {
    const Lock lock(mutex_);
    stop_ = true;
    all_.clear();
    thread = std::move(thread_);
  }
  changed_.notify_all();
  if (thread.joinable()) thread.join();
}

void ProfilerFeed::add(const std::string& plugin, const CallRecords& records,
                       const ProfilerPlugin::Context::Communicator& communicator) noexcept {
  try {
    const Lock lock(mutex_);
    std::shared_ptr<ProfilerPlugin> loaded = plugins_[plugin].lock();
    if (loaded == nullptr) {
      loaded = ProfilerPlugin::load(plugin);
      plugins_[plugin] = loaded;
      log::info(log::kInit, "profiler plugin {} (version {} of NCCL's interface)", loaded->name(),
                loaded->version());
    }
    all_[&records] = std::make_unique<ProfiledRecords>(records, std::move(loaded), communicator);
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  } catch (const std::exception& error) {
    log::warn("setting PROFILER_PLUGIN: {}", error.what());
  }
  changed_.notify_all();
}

void ProfilerFeed::remove(const CallRecords& records) noexcept {
  try {
    const Lock lock(mutex_);
    const auto at = all_.find(&records);
    if (at == all_.end()) return;
    at->second->tell();
    all_.erase(at);
  } catch (const std::exception& error) {
    log::warn("setting PROFILER_PLUGIN: {}", error.what());
  }
}

void ProfilerFeed::run() {
  while (true) {
    {
      Lock lock(mutex_);
      lock.wait(changed_, [this]() RW_REQUIRES(mutex_) { return stop_ || !all_.empty(); });
      if (stop_) return;
      for (auto& [records, profiled] : all_) {
        try {
          profiled->tell();
        } catch (const std::exception& error) {
          log::warn("setting PROFILER_PLUGIN: {}", error.what());
        }
      }
    }
    std::this_thread::sleep_for(kFeedPeriod);
  }
}

}  // namespace ropewalk::trace
