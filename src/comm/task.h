// Something that a communicator has been asked to do, and can go on with a little at a time.
//
// Tasks never block, so one thread can drive those of several communicators (groups), and any
// thread can take over between two calls of advance().
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/collective_call.h"
#include "comm/prepared.h"
#include "executor/host/host_team.h"
#include "link/links.h"
#include "trace/call_records.h"

namespace ropewalk::comm {

class Communicator;

class Task {
 public:
  virtual ~Task() = default;
  /// Goes on as far as possible. @return true when done
  virtual bool advance(executor::HostTeam& team) = 0;
  /// Ranks that it waits for now.
  [[nodiscard]] virtual std::vector<int> waiting_for(const executor::HostTeam& team) = 0;
  /// "all_reduce of 4 float32", for messages.
  [[nodiscard]] virtual std::string describe() const = 0;
  /// "all_reduce", "barrier", "messages"; and its bytes, of this rank's sends for messages.
  [[nodiscard]] virtual std::pair<std::string_view, std::size_t> operation() const = 0;
  /// What the ranks that take part must agree on; nothing for sends and receives, which are
  /// compared when they meet.
  [[nodiscard]] virtual std::optional<executor::CallTag> tag() const { return std::nullopt; }

  /// Its operations' records are the `count` from `first` on.
  void record_in(trace::CallRecords& records, trace::CallRecords::Id first,
                 std::size_t count) noexcept {
    records_ = &records;
    first_record_ = first;
    num_records_ = first == 0 ? 0 : count;
  }
  /// For who runs it: before the first advance(), and when it is done.
  void started() noexcept {
    for (std::size_t i = 0; i < num_records_; ++i) records_->start(first_record_ + i);
  }
  void completed() noexcept {
    for (std::size_t i = 0; i < num_records_; ++i) records_->complete(first_record_ + i);
  }

 protected:
  void record_label(std::uint16_t label) noexcept {
    for (std::size_t i = 0; i < num_records_; ++i) records_->set_label(first_record_ + i, label);
  }
  void record_chunk(std::size_t bytes) noexcept {
    for (std::size_t i = 0; i < num_records_; ++i) records_->set_chunk(first_record_ + i, bytes);
  }

 private:
  trace::CallRecords* records_ = nullptr;
  trace::CallRecords::Id first_record_ = 0;
  std::size_t num_records_ = 0;
};

class CollectiveTask final : public Task {
 public:
  /// @param number of the call, as next_number() gave it
  CollectiveTask(Communicator& comm, const CollectiveCall& call, bool in_place,
                 std::uint64_t number)
      : comm_(comm),
        call_(call),
        in_place_(in_place),
        number_(number),
        tag_(tag_of(call, static_cast<std::uint32_t>(number))) {}
  /// A call that has begun: `prepared` is armed for it.
  CollectiveTask(Communicator& comm, const CollectiveCall& call, PreparedCollective& prepared)
      : comm_(comm),
        call_(call),
        in_place_(prepared.call().in_place),
        tag_(prepared.call().tag),
        prepared_(&prepared) {
    set_armed();
  }
  bool advance(executor::HostTeam& team) override;
  [[nodiscard]] std::vector<int> waiting_for(const executor::HostTeam& team) override;
  [[nodiscard]] std::string describe() const override;
  [[nodiscard]] std::pair<std::string_view, std::size_t> operation() const override {
    return {operation_name(call_), message_bytes(call_)};
  }
  [[nodiscard]] std::optional<executor::CallTag> tag() const override { return tag_; }

 private:
  bool begin();
  void set_armed();

  Communicator& comm_;
  CollectiveCall call_;
  bool in_place_;
  std::uint64_t number_ = 0;
  executor::CallTag tag_;
  PreparedCollective* prepared_ = nullptr;
  bool armed_ = false;
  std::size_t done_ = 0;  // strands, when there is one
  std::vector<bool> strand_done_;
};

/// Sends and receives that were grouped: all make progress at once.
class PointToPointTask final : public Task {
 public:
  PointToPointTask(Communicator& comm, std::vector<PointToPointCall> calls);
  bool advance(executor::HostTeam& team) override;
  [[nodiscard]] std::vector<int> waiting_for(const executor::HostTeam& team) override;
  [[nodiscard]] std::string describe() const override;
  [[nodiscard]] std::pair<std::string_view, std::size_t> operation() const override;

 private:
  struct Item {
    PointToPointCall call;
    executor::Call walker_call;
    executor::Strand strand;
    int after = -1;  // an earlier item on the same link, which must be done first
    bool started = false;
    bool done = false;
  };
  bool start(Item& item);

  Communicator& comm_;
  std::vector<Item> items_;
  bool sends_ = false;  // any of them
};

/// Ranks whose links keep a strand from going on.
std::vector<int> blocking_peers(executor::Strand& strand, const executor::Call& call,
                                const executor::HostTeam& team);

}  // namespace ropewalk::comm
