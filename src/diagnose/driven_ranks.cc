#include "diagnose/driven_ranks.h"

#include <thread>

namespace ropewalk::diagnose {

DrivenRanks::~DrivenRanks() {
  if (!left_ && comms_.size() > 1) {
    for (comm::Communicator* comm : comms_)
      comm->abort("a measurement of its thread's ranks failed");
  }
  while (!ranks_.empty()) ranks_.pop_back();
}

void DrivenRanks::prepare(const MeasureSpec& spec) {
  for (comm::Communicator* comm : comms_)
    ranks_.push_back(std::make_unique<MeasuredRank>(*comm, spec));
  nothing_.resize(ranks_.size());
  unfinished_.reserve(ranks_.size());
  if (spec.registered) at_once([&](std::size_t i) { ranks_[i]->site().register_buffers(); });
  barrier();
}

void DrivenRanks::run(std::size_t turn) {
  if (ranks_.size() == 1) {
    first().site().run(first().call(turn));
    return;
  }
  group_.start();
  for (const auto& rank : ranks_) rank->site().add(rank->call(turn), group_);
  group_.end();
}

void DrivenRanks::finish() {
  if (ranks_.size() == 1) {
    first().site().finish();
    return;
  }
  // All in turn: the first may be waiting for another one that has failed.
  for (const auto& rank : ranks_) unfinished_.push_back(rank.get());
  while (true) {
    std::erase_if(unfinished_, [](MeasuredRank* rank) { return rank->site().finished(); });
    if (unfinished_.empty()) return;
    std::this_thread::yield();
  }
}

void DrivenRanks::barrier() {
  if (ranks_.size() == 1) {
    first().comm().barrier();
    return;
  }
  group_.start();
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    group_.add(ranks_[i]->comm(), comm::barrier_call(nothing_[i]), nullptr);
  }
  group_.end();
}

void DrivenRanks::capture(const std::function<void()>& enqueue) {
  for (const auto& rank : ranks_) rank->site().begin_capture();
  enqueue();
  for (const auto& rank : ranks_) rank->site().end_capture();
  for (const auto& rank : ranks_) rank->site().load_captured();
  barrier();
}

void DrivenRanks::replay() {
  for (const auto& rank : ranks_) rank->site().replay();
}

void DrivenRanks::at_once(const std::function<void(std::size_t)>& body) {
  if (ranks_.size() == 1) {
    body(0);
    return;
  }
  group_.start();
  for (std::size_t i = 0; i < ranks_.size(); ++i) group_.add_join([&body, i] { body(i); });
  group_.end();
}

}  // namespace ropewalk::diagnose
