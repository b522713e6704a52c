#include "bootstrap/fate.h"

#include <utility>

namespace ropewalk::bootstrap {

void Fate::fail(Errc code, const std::string& text) {
  const Lock lock(mutex_);
  if (broken_.load(std::memory_order_relaxed)) return;
  code_ = code;
  text_ = text;
  broken_.store(true, std::memory_order_release);
  if (hook_) hook_();
}

void Fate::when_broken(std::function<void()> hook) {
  const Lock lock(mutex_);
  hook_ = std::move(hook);
  if (hook_ && broken()) hook_();
}

Error Fate::error() const {
  const Lock lock(mutex_);
  return {code_, text_};
}

void Fate::raise() const { throw error(); }

std::vector<int> Fate::suspected() const {
  const Lock lock(mutex_);
  return {suspected_.begin(), suspected_.end()};
}

std::vector<int> Fate::left() const {
  const Lock lock(mutex_);
  return {left_.begin(), left_.end()};
}

void Fate::on_lost(int rank, const std::string& reason) {
  fail(Errc::kPeerLost, fmt::format("rank {} was lost: {}", rank, reason));
}

void Fate::on_suspect(int rank, bool suspected) {
  const Lock lock(mutex_);
  if (suspected) {
    suspected_.insert(rank);
  } else {
    suspected_.erase(rank);
  }
}

void Fate::on_left(int rank) {
  // Not an error: what it sent before may still be on its way.
  const Lock lock(mutex_);
  left_.insert(rank);
}

void Fate::on_abort(int rank, const std::string& reason) {
  fail(Errc::kPeerLost, fmt::format("rank {} aborted: {}", rank, reason));
}

}  // namespace ropewalk::bootstrap
