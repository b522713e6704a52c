#include "bootstrap/failure_state.h"

#include <utility>

namespace ropewalk::bootstrap {

void FailureState::fail(Errc code, const std::string& text) {
  const Lock lock(mutex_);
  if (broken_.load(std::memory_order_relaxed)) return;
  code_ = code;
  text_ = text;
  broken_.store(true, std::memory_order_release);
  for (const std::function<void()>& hook : hooks_) hook();
}

void FailureState::when_broken(std::function<void()> hook) {
  const Lock lock(mutex_);
  if (broken()) hook();
  hooks_.push_back(std::move(hook));
}

void FailureState::forget_hooks() {
  const Lock lock(mutex_);
  hooks_.clear();
}

Error FailureState::error() const {
  const Lock lock(mutex_);
  return {code_, text_};
}

void FailureState::raise() const { throw error(); }

std::vector<int> FailureState::suspected() const {
  const Lock lock(mutex_);
  return {suspected_.begin(), suspected_.end()};
}

std::vector<int> FailureState::left() const {
  const Lock lock(mutex_);
  return {left_.begin(), left_.end()};
}

std::map<int, std::string> FailureState::lost() const {
  const Lock lock(mutex_);
  return lost_;
}

void FailureState::on_lost(int rank, const std::string& reason) {
  {
    const Lock lock(mutex_);
    lost_.emplace(rank, reason);
  }
  fail(Errc::kPeerLost, fmt::format("rank {} was lost: {}", rank, reason));
}

void FailureState::on_suspect(int rank, bool suspected) {
  const Lock lock(mutex_);
  if (suspected) {
    suspected_.insert(rank);
  } else {
    suspected_.erase(rank);
  }
}

void FailureState::on_left(int rank) {
  // Not an error: what it sent before may still be in transit.
  const Lock lock(mutex_);
  left_.insert(rank);
  any_left_.store(true, std::memory_order_release);
}

void FailureState::on_abort(int rank, const std::string& reason) {
  fail(Errc::kPeerLost, fmt::format("rank {} aborted: {}", rank, reason));
}

}  // namespace ropewalk::bootstrap
