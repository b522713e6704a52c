#include "trace/roll_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <thread>

#include "core/error.h"
#include "core/log.h"

namespace ropewalk::trace {
namespace {

constexpr std::uint32_t kAskTag = 0x52000000;
constexpr std::uint32_t kAnswerTag = 0x52010000;
constexpr std::chrono::milliseconds kLookPeriod{1};
// A program that sends many messages after its last collective is taken to be in none.
constexpr std::size_t kRecordsLookedAt = 64;
constexpr std::size_t kMostTold = 4;

struct Answer {
  std::uint64_t call;
  std::uint64_t inside;
  std::uint64_t not_begun;
  std::uint64_t enqueued;
  // The operation follows.
};

std::string describe(const CallRecords::Record& record) {
  std::string text = record.operation;
  if (!record.type.empty()) text += fmt::format(" of {} {}", record.count, record.type);
  if (!record.op.empty()) text += fmt::format(" ({})", record.op);
  if (record.root >= 0) text += fmt::format(", root {}", record.root);
  if (record.peer >= 0) {
    text += fmt::format(" {} rank {}", record.operation == "send" ? "to" : "from", record.peer);
  }
  return text;
}

bool contains(const std::vector<int>& ranks, int rank) {
  return std::ranges::find(ranks, rank) != ranks.end();
}

// Numbers of collectives are compared modulo 2^32.
bool before(std::uint64_t call, std::uint32_t other) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(call) - other) < 0;
}

// Enqueued, and not begun by its GPU.
bool waits_for_gpu(const RollCall::Position& at, std::uint32_t call) {
  return at.not_begun != 0 && !before(call, static_cast<std::uint32_t>(at.not_begun)) &&
         !before(at.enqueued, call);
}

std::string of_ranks(const std::vector<int>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

}  // namespace

RollCall::RollCall(bootstrap::Bootstrap& bootstrap, const CallRecords& records)
    : bootstrap_(bootstrap), records_(records) {
  bootstrap_.on_message(kAskTag, [this](int peer, std::span<const std::byte>) { on_ask(peer); });
  bootstrap_.on_message(
      kAnswerTag, [this](int peer, std::span<const std::byte> bytes) { on_answer(peer, bytes); });
}

RollCall::~RollCall() {
  bootstrap_.on_message(kAskTag, nullptr);
  bootstrap_.on_message(kAnswerTag, nullptr);
}

RollCall::Position RollCall::position_in(const CallRecords& records) {
  Position found;
  for (const CallRecords::Record& record : records.read(kRecordsLookedAt)) {
    if (record.on_device && record.timed && record.state == CallRecords::State::kScheduled) {
      if (record.call == 0) continue;
      if (found.not_begun == 0) found.not_begun = record.call;
      found.enqueued = record.call;
      continue;
    }
    if (record.call == 0 && found.call != 0) continue;
    found.call = record.call;
    found.inside = record.state != CallRecords::State::kCompleted;
    found.operation = describe(record);
  }
  return found;
}

void RollCall::on_ask(int peer) {
  try {
    const Position mine = position_in(records_);
    const Answer answer{mine.call, mine.inside ? 1U : 0U, mine.not_begun, mine.enqueued};
    std::vector<std::byte> bytes(sizeof answer + mine.operation.size());
    std::memcpy(bytes.data(), &answer, sizeof answer);
    std::memcpy(bytes.data() + sizeof answer, mine.operation.data(), mine.operation.size());
    bootstrap_.send(peer, kAnswerTag, bytes);
  } catch (const std::exception& error) {
    log::info(log::kInit, "rank {} cannot be told where this one is: {}", peer, error.what());
  }
}

void RollCall::on_answer(int peer, std::span<const std::byte> bytes) {
  Answer answer{};
  if (bytes.size() < sizeof answer) return;
  std::memcpy(&answer, bytes.data(), sizeof answer);
  const std::span<const std::byte> text = bytes.subspan(sizeof answer);
  const Lock lock(mutex_);
  answers_[peer] = {answer.call, answer.inside != 0,
                    std::string(reinterpret_cast<const char*>(text.data()), text.size()),
                    answer.not_begun, answer.enqueued};
}

std::map<int, RollCall::Position> RollCall::ask(std::span<const int> left) {
  {
    const Lock lock(mutex_);
    answers_.clear();
  }
  std::size_t asked = 0;
  for (int peer = 0; peer < bootstrap_.size(); ++peer) {
    if (peer == bootstrap_.rank() || std::ranges::find(left, peer) != left.end()) continue;
    try {
      bootstrap_.send(peer, kAskTag, {});
      ++asked;
    } catch (const Error&) {
      // It does not answer.
    }
  }
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (true) {
    {
      const Lock lock(mutex_);
      if (answers_.size() >= asked || std::chrono::steady_clock::now() > end) return answers_;
    }
    std::this_thread::sleep_for(kLookPeriod);
  }
}

std::string missing(const std::map<int, RollCall::Position>& found, const Waiting& waiting) {
  std::vector<int> silent;
  std::vector<int> absent;
  std::vector<int> enqueued;
  for (int peer = 0; peer < waiting.size; ++peer) {
    if (peer == waiting.rank || contains(waiting.left, peer)) continue;
    const auto answer = found.find(peer);
    if (answer == found.end()) {
      silent.push_back(peer);
    } else if (waiting.call && waits_for_gpu(answer->second, *waiting.call)) {
      enqueued.push_back(peer);
    } else if (waiting.call ? before(answer->second.call, *waiting.call)
                            : contains(waiting.peers, peer)) {
      absent.push_back(peer);
    }
  }
  std::string text;
  if (!silent.empty()) {
    text +=
        fmt::format("; {} {} not respond", of_ranks(silent), silent.size() == 1 ? "does" : "do");
  }
  if (waiting.call && !absent.empty()) {
    text += fmt::format("; {} {} not entered it, collective {}", of_ranks(absent),
                        absent.size() == 1 ? "has" : "have", *waiting.call);
  }
  if (!enqueued.empty()) {
    text += fmt::format("; {} {} enqueued it, collective {}, and {} not begun it",
                        of_ranks(enqueued), enqueued.size() == 1 ? "has" : "have", *waiting.call,
                        enqueued.size() == 1 ? "its GPU has" : "their GPUs have");
  }
  absent.insert(absent.end(), enqueued.begin(), enqueued.end());
  for (std::size_t i = 0; i < std::min(absent.size(), kMostTold); ++i) {
    const RollCall::Position& at = found.at(absent[i]);
    if (at.operation.empty()) {
      text += fmt::format("; rank {} has entered no operation", absent[i]);
      continue;
    }
    const std::string number = at.call == 0 ? "" : fmt::format(", collective {}", at.call);
    text += fmt::format("; rank {} {} {}{}", absent[i], at.inside ? "is in" : "has last completed",
                        at.operation, number);
  }
  return text;
}

}  // namespace ropewalk::trace
