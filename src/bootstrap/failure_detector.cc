#include "bootstrap/failure_detector.h"

#include <algorithm>

namespace ropewalk::bootstrap {
namespace {

// Heartbeats in PEER_LOSS_TIME. Four: one or two late ones on a loaded machine raise no suspicion.
constexpr int kBeats = 4;

}  // namespace

void FailureDetector::reset() { heard_at_.assign(context_.table.size(), Clock::now()); }

void FailureDetector::start() {
  reset();
  last_tick_ = Clock::now();
  if (context_.options.size > 1) on_tick();
}

void FailureDetector::heard(int peer) {
  if (heard_at_.empty()) return;
  heard_at_[static_cast<std::size_t>(peer)] = Clock::now();
  gossip_.suspect(peer, false);
}

void FailureDetector::on_tick() {
  const auto now = Clock::now();
  const Clock::duration period = Clock::duration(context_.options.peer_loss_time) / kBeats;
  // Longer: this process was stopped or starved, and could not hear.
  if (now - last_tick_ > 2 * period) std::fill(heard_at_.begin(), heard_at_.end(), now);
  last_tick_ = now;
  std::set<int> neighbours = {ring_.next_alive(), ring_.previous_alive()};
  neighbours.erase(-1);
  for (const int peer : neighbours) {
    // Ranks that were not neighbours had no reason to send anything.
    if (!neighbours_.contains(peer)) heard_at_[static_cast<std::size_t>(peer)] = now;
  }
  neighbours_ = neighbours;
  for (const int peer : neighbours) watch(peer, now);
  context_.timers.after(period, [this] { on_tick(); });
}

void FailureDetector::watch(int peer, Clock::time_point now) {
  const RankRecord& record = context_.record(peer);
  // Ranks of one process stop and end together.
  if (record.service == context_.service.token()) return;
  const auto silence = now - heard_at_[static_cast<std::size_t>(peer)];
  const auto peer_loss_time = context_.options.peer_loss_time;
  if (silence > peer_loss_time / 2 && process_ended(record)) {
    // A child of it holds its sockets open.
    gossip_.spread_lost(peer, fmt::format("its process {} has ended", record.pid));
    return;
  }
  if (silence > peer_loss_time) gossip_.suspect(peer, true);
  PeerLink* link = links_.find(peer);
  // A peer that does not read must not fill this process' memory.
  if (link != nullptr && link->connection->flushed()) send_frame(*link, PeerFrame::kHeartbeat);
}

}  // namespace ropewalk::bootstrap
