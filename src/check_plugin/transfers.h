// Messages in flight, driven as NCCL's progress thread drives them: post what the plugin takes,
// test the oldest, go on.
#pragma once

#include <deque>
#include <functional>
#include <vector>

#include "check_plugin/region.h"
#include "check_plugin/session.h"

namespace ropewalk::check_plugin {

/// NCCL's number of steps: how many messages of one operation are in flight.
constexpr int kSteps = 8;

/// One post of the plugin's: isend, irecv or iflush, with the poison that strict sessions ask for.
///
/// @return the request; NULL for "not now"
void* post_send(Session& session, void* comm, const Part& part);
void* post_receive(Session& session, void* comm, const std::vector<Part>& parts,
                   bool optional_completion = false);

/// One test. `sizes`: NULL, or as many entries as the request has parts, and their initial values;
/// more are guarded in strict sessions.
bool test_request(Session& session, void* request, std::vector<int>* sizes);

/// A message to send: a range of a region.
struct Message {
  std::size_t offset = 0;
  std::size_t bytes = 0;
  int tag = 0;
};

/// Sends messages in order, at most `limit` at once.
class Sends {
 public:
  Sends(Session& session, void* comm, const Region& region, void* mhandle,
        std::vector<Message> messages, int limit = kSteps);
  /// @return whether all are done
  bool step();
  [[nodiscard]] std::size_t completed() const noexcept { return completed_; }
  /// Called after each.
  std::function<void(std::size_t number)> on_done;
  /// Says whether the next may be sent yet.
  std::function<bool(std::size_t number)> may_post;

 private:
  Session* session_;
  void* comm_;
  const Region* region_;
  void* mhandle_;
  std::vector<Message> messages_;
  std::size_t limit_;
  std::size_t posted_ = 0;
  std::size_t completed_ = 0;
  std::deque<void*> requests_;
};

/// One buffer of a group: a range of a region, and the expected message.
struct Slot {
  std::size_t offset = 0;
  std::size_t posted = 0;    ///< bytes that may come
  std::size_t expected = 0;  ///< bytes that come
  int tag = 0;
};

/// Receives groups in order. Sizes from test are ignored, as in NCCL, unless `checks_sizes` is set.
class Receives {
 public:
  using Groups = std::vector<std::vector<Slot>>;
  Receives(Session& session, void* comm, const Region& region, void* mhandle, Groups groups,
           int limit = kSteps);
  bool step();
  [[nodiscard]] std::size_t completed() const noexcept { return completed_; }
  std::function<void(std::size_t number)> on_done;
  bool checks_sizes = false;
  /// Asks for early completion, as for NCCL's LL protocol.
  bool optional_completion = false;

 private:
  Session* session_;
  void* comm_;
  const Region* region_;
  void* mhandle_;
  Groups groups_;
  std::size_t limit_;
  std::size_t posted_ = 0;
  std::size_t completed_ = 0;
  std::deque<void*> requests_;
};

/// Single receives, each as large as its message.
Receives::Groups single_slots(const std::vector<Message>& messages);

/// Steps all until all are done.
/// @throws Failed with `expected` when the time is over
template <typename... Pumps>
void run(Session& session, std::string_view expected, Pumps&... pumps) {
  session.wait(expected, [&] {
    bool done = true;
    ((done = pumps.step() && done), ...);
    return done;
  });
}

/// Sends `messages` from the sending child to the receiving one over the first of `comms`, filled
/// by seed + number, and compares the received data. Both children call it with the same messages,
/// which do not overlap.
/// @param posted bytes that the receiver posts for each; 0: as many as come
void transfer(Session& session, void* comm, const std::vector<Message>& messages,
              std::uint64_t seed, int limit = kSteps, std::size_t posted = 0);

/// Sends one message over a connection whose ends are both in this process, and compares it.
void send_to_self(Session& session, void* send, void* receive, std::uint64_t seed);

}  // namespace ropewalk::check_plugin
