#include "monitor/rank_summaries.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/log.h"

namespace ropewalk::monitor {
namespace {

using nlohmann::json;

constexpr std::uint32_t kAskSummaryTag = 0x52020000;
constexpr std::uint32_t kSummaryTag = 0x52030000;

}  // namespace

std::string to_text(const RankSummary& summary) {
  json links = json::array();
  for (const executor::Traffic::Entry& link : summary.links) {
    links.push_back({link.peer, link.over, link.bytes});
  }
  const json document = {{"rank", summary.rank},
                         {"host", summary.host},
                         {"process", summary.process},
                         {"device", summary.device},
                         {"call", summary.call},
                         {"inside", summary.inside},
                         {"operation", summary.operation},
                         {"failure", summary.failure},
                         {"stalled", summary.stalled_seconds},
                         {"counts", summary.counts},
                         {"links", std::move(links)}};
  return document.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::optional<RankSummary> rank_summary(std::string_view text) {
  try {
    const json document = json::parse(text);
    RankSummary summary;
    document.at("rank").get_to(summary.rank);
    document.at("host").get_to(summary.host);
    document.at("process").get_to(summary.process);
    document.at("device").get_to(summary.device);
    document.at("call").get_to(summary.call);
    document.at("inside").get_to(summary.inside);
    document.at("operation").get_to(summary.operation);
    document.at("failure").get_to(summary.failure);
    document.at("stalled").get_to(summary.stalled_seconds);
    document.at("counts").get_to(summary.counts);
    for (const json& link : document.at("links")) {
      summary.links.push_back(
          {link.at(0).get<int>(), link.at(1).get<std::string>(), link.at(2).get<std::uint64_t>()});
    }
    return summary;
  } catch (const json::exception&) {
    return std::nullopt;
  }
}

RankSummaries::RankSummaries(bootstrap::Bootstrap& bootstrap, std::function<RankSummary()> own)
    : bootstrap_(bootstrap), own_(std::move(own)) {
  bootstrap_.on_message(
      kAskSummaryTag, [this](int peer, std::span<const std::byte> bytes) { on_ask(peer, bytes); });
  bootstrap_.on_message(
      kSummaryTag, [this](int peer, std::span<const std::byte> bytes) { on_answer(peer, bytes); });
}

RankSummaries::~RankSummaries() {
  bootstrap_.on_message(kAskSummaryTag, nullptr);
  bootstrap_.on_message(kSummaryTag, nullptr);
}

// A question is the number of its round; an answer that, and the summary's text.
void RankSummaries::on_ask(int peer, std::span<const std::byte> bytes) {
  if (bytes.size() != sizeof(std::uint64_t)) return;
  try {
    const std::string text = to_text(own_());
    std::vector<std::byte> answer(bytes.begin(), bytes.end());
    const auto* characters = reinterpret_cast<const std::byte*>(text.data());
    answer.insert(answer.end(), characters, characters + text.size());
    bootstrap_.send(peer, kSummaryTag, answer);
  } catch (const std::exception& error) {
    log::info(log::kInit, "rank {} cannot be told how this one is: {}", peer, error.what());
  }
}

void RankSummaries::on_answer(int peer, std::span<const std::byte> bytes) {
  std::uint64_t round = 0;
  if (bytes.size() < sizeof round) return;
  std::memcpy(&round, bytes.data(), sizeof round);
  const std::span<const std::byte> text = bytes.subspan(sizeof round);
  std::optional<RankSummary> summary =
      rank_summary({reinterpret_cast<const char*>(text.data()), text.size()});
  if (!summary.has_value() || summary->rank != peer) return;
  const Lock lock(mutex_);
  if (round == round_) answers_[peer] = *std::move(summary);
}

void RankSummaries::ask(std::span<const int> left) {
  std::uint64_t round = 0;
  {
    const Lock lock(mutex_);
    round = ++round_;
    answers_.clear();
    answers_[bootstrap_.rank()] = own_();
    asked_ = static_cast<std::size_t>(bootstrap_.size()) - left.size();
  }
  for (int peer = 0; peer < bootstrap_.size(); ++peer) {
    if (peer == bootstrap_.rank() || std::ranges::find(left, peer) != left.end()) continue;
    try {
      bootstrap_.send(peer, kAskSummaryTag, std::as_bytes(std::span(&round, 1)));
    } catch (const Error&) {
      // It does not answer.
    }
  }
}

RankSummaries::Answers RankSummaries::answers() const {
  const Lock lock(mutex_);
  return {answers_, answers_.size() >= asked_};
}

}  // namespace ropewalk::monitor
