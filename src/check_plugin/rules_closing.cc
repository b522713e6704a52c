// Rules about ends: closing in any order, dead peers, leftover resources.
#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill is POSIX's
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <string_view>
#include <vector>

#include "check_plugin/connections.h"
#include "check_plugin/rules.h"
#include "check_plugin/transfers.h"
#include "check_plugin/usage.h"

namespace ropewalk::check_plugin {
namespace {

constexpr std::size_t kMessage = 100'000;
constexpr int kLeaksTimeFactor = 12;

void check_close_null(Session& session) {
  session.start();
  if (session.plugin().version() > 6) {
    throw Skipped{"a version that NCCL up to 2.15 loads: 4 to 6"};
  }
  const auto need = [](abi::Result result, Call call) {
    if (result == abi::kSuccess) return;
    throw Failed{fmt::format("success from {}(NULL)", name(call)), describe(result)};
  };
  need(session.plugin().close_send(nullptr), Call::kCloseSend);
  need(session.plugin().close_recv(nullptr), Call::kCloseRecv);
}

void check_close_order(Session& session) {
  session.start();
  // Once the sender closes first, once the receiver; the other goes on a while later.
  for (const bool sender_first : {true, false}) {
    const Comms comms = connect_one_way(session);
    void* comm = session.sender() ? comms.sends[0] : comms.receives[0];
    transfer(session, comm, {{0, kMessage, 0}}, 200);
    session.meet();
    if (session.sender() == sender_first) close_comms(session, comms);
    session.meet();
    if (session.sender() != sender_first) {
      Region region(1000);
      void* mhandle = nullptr;
      // The registration may fail now; ending one, and closing, may not.
      if (session.plugin().reg_mr(comm, region.data(), region.bytes(), region.type(), &mhandle) ==
          abi::kSuccess) {
        session.expect(session.plugin().dereg_mr(comm, mhandle), Call::kDeregMr);
      }
      close_comms(session, comms);
    }
    session.meet();
  }
  // And a new connection works.
  const Comms comms = connect_one_way(session);
  transfer(session, session.sender() ? comms.sends[0] : comms.receives[0], {{0, kMessage, 0}}, 201);
  meet_and_close(session, comms);
}

void check_close_pending(Session& session) {
  session.start();
  const Comms comms = connect_one_way(session);
  void* comm = session.sender() ? comms.sends[0] : comms.receives[0];
  constexpr std::size_t kBytes = std::size_t{1} << 20;
  Region region(4 * kBytes);
  void* mhandle = region.register_on(session, comm);
  void* first = nullptr;
  for (std::size_t i = 0; i < 4; ++i) {
    const Part part{region.at(i * kBytes), kBytes, 0, mhandle};
    void* request =
        session.sender() ? post_send(session, comm, part) : post_receive(session, comm, {part});
    if (i == 0) first = request;
  }
  // Underway, but not to the end.
  if (first != nullptr) test_request(session, first, nullptr);
  session.meet();
  // As after an abort: nobody tests any more.
  session.expect(session.plugin().dereg_mr(comm, mhandle), Call::kDeregMr);
  close_comms(session, comms);
  session.meet();
  region.blank(0, region.bytes());
  const Comms next = connect_one_way(session);
  transfer(session, session.sender() ? next.sends[0] : next.receives[0],
           {{0, kMessage, 0}, {kMessage, kMessage, 0}}, 210);
  if (const auto at = region.first_written(0, region.bytes())) {
    throw Failed{"no write into memory that is no longer registered",
                 fmt::format("byte {} was written after the close", *at)};
  }
  meet_and_close(session, next);
  session.end_context(session.context());
}

void check_close_connecting(Session& session) {
  session.start();
  {
    Listening listening(session, session.context());
    if (session.plugin().polls_connections()) {
      Connecting connecting(session, session.context(), listening.handle());
      for (int i = 0; i < 3 && connecting.comm() == nullptr; ++i) connecting.step();
      listening.close();
      // Errors are correct here; nobody closes a half-made connection.
      for (int i = 0; i < 100 && connecting.comm() == nullptr; ++i) {
        if (connecting.call() != abi::kSuccess) break;
      }
      if (connecting.comm() != nullptr) {
        session.expect(session.plugin().close_send(connecting.comm()), Call::kCloseSend);
      }
    } else {
      listening.close();
    }
  }
  close_comms(session, connect_self(session, session.context()));
  session.end_context(session.context());
}

[[noreturn]] void die(Session& session) {
  session.own().meant_to_die.store(true);
  kill(getpid(), SIGKILL);
  for (;;) pause();
}

// Both ends move a few messages first, so that the connection is whole.
void* connected_pair(Session& session, Comms& comms) {
  session.start();
  comms = connect_one_way(session);
  void* comm = session.sender() ? comms.sends[0] : comms.receives[0];
  transfer(session, comm, {{0, kMessage, 0}, {kMessage, 8, 0}}, 220, 1);
  session.meet();
  return comm;
}

// Clean-up after a lost peer: an error would leave the rest of it undone.
void close_after_loss(Session& session, const Comms& comms, void* comm, void* mhandle) {
  const abi::Result result = session.plugin().dereg_mr(comm, mhandle);
  if (result != abi::kSuccess) {
    throw Failed{"success from deregMr after the peer is gone", describe(result)};
  }
  const abi::Result closed = session.sender() ? session.plugin().close_send(comms.sends[0])
                                              : session.plugin().close_recv(comms.receives[0]);
  if (closed != abi::kSuccess) {
    throw Failed{"success from close after the peer is gone", describe(closed)};
  }
  session.end_context(session.context());
}

// Sends into buffers, and receives of data in flight, may still complete for some time after the
// death of the other end.
void check_lost(Session& session, bool victim) {
  Comms comms;
  void* comm = connected_pair(session, comms);
  if (victim) die(session);
  const bool sends = session.sender();
  const std::string after = fmt::format("after the {} was killed", sends ? "receiver" : "sender");
  Region region(kMessage);
  void* mhandle = region.register_on(session, comm);
  const Part part{region.data(), region.bytes(), 0, mhandle};
  session.wait(fmt::format("an error from {} or test {}", sends ? "isend" : "irecv", after), [&] {
    void* request = nullptr;
    Plugin& plugin = session.plugin();
    const abi::Result posted =
        sends ? plugin.isend(comm, part, &request) : plugin.irecv(comm, {part}, &request);
    if (posted != abi::kSuccess) return true;
    if (request == nullptr) return false;
    bool lost = false;
    session.wait("an error from test " + after, [&] {
      int done = 0;
      std::vector<int> sizes(64);
      lost = plugin.test(request, &done, sizes.data()) != abi::kSuccess;
      return lost || done != 0;
    });
    return lost;
  });
  close_after_loss(session, comms, comm, mhandle);
}

void check_lost_sender(Session& session) { check_lost(session, session.sender()); }
void check_lost_receiver(Session& session) { check_lost(session, session.receiver()); }

// The peer listened, gave its handle, and died.
void check_lost_listener(Session& session) {
  session.start();
  if (session.receiver()) {
    const Listening listening(session, session.context());
    session.tell(listening.handle());
    session.meet();
    die(session);
  }
  session.meet();
  std::vector<std::byte> handle(session.plugin().handle_bytes());
  const auto heard = session.heard(handle.size());
  std::copy(heard.begin(), heard.end(), handle.begin());
  // Until the checker has reaped it, its listening sockets may still take connections.
  session.wait("the listener is gone",
               [&] { return session.other().meant_to_die.load() && session.other_gone(); });
  Connecting connecting(session, session.context(), handle);
  // An error, or "not yet" for as long as NCCL cares to ask; no hang, no crash.
  abi::Result result = abi::kSuccess;
  const int polls = session.plugin().polls_connections() ? 1000 : 1;
  for (int i = 0; i < polls && result == abi::kSuccess && connecting.comm() == nullptr; ++i) {
    result = connecting.call();
    usleep(100);
  }
  if (result != abi::kSuccess && connecting.comm() != nullptr) {
    throw Failed{"a NULL comm with an error from connect", "a comm"};
  }
  if (connecting.comm() != nullptr) {
    session.expect(session.plugin().close_send(connecting.comm()), Call::kCloseSend);
  }
  session.end_context(session.context());
}

// As a rank whose part is done: it ends its communicator and its program while its messages are
// still in flight.
void check_early_end(Session& session) {
  session.start();
  constexpr std::size_t kBytes = 20'000;
  std::vector<Message> messages;
  for (std::size_t i = 0; i < 4; ++i) messages.push_back({i * kBytes, kBytes, 0});
  const Comms comms = connect_one_way(session);
  void* comm = session.sender() ? comms.sends[0] : comms.receives[0];
  Region region(messages.size() * kBytes);
  void* mhandle = region.register_on(session, comm);
  if (session.sender()) {
    for (const Message& message : messages) region.fill(message.offset, kBytes, message.offset);
    Sends sends(session, comm, region, mhandle, messages);
    run(session, "all sends complete", sends);
    session.expect(session.plugin().dereg_mr(comm, mhandle), Call::kDeregMr);
    close_comms(session, comms);
    session.end_context(session.context());
    session.end_alone();
    return;
  }
  Receives receives(session, comm, region, mhandle, single_slots(messages));
  receives.step();
  // A plugin may need this end's tests to move its messages, but the longer nothing is tested, the
  // more is underway when the sender ends.
  static_cast<void>(
      session.within(std::chrono::milliseconds(50), [&] { return session.other_gone(); }));
  run(session, "all receives complete, though the sender has closed and ended", receives);
  for (const Message& message : messages) {
    if (const auto wrong = region.difference(message.offset, kBytes, message.offset)) {
      throw Failed{"what was sent, though the sender has closed and ended", *wrong};
    }
  }
  session.expect(session.plugin().dereg_mr(comm, mhandle), Call::kDeregMr);
  close_comms(session, comms);
}

void check_leaks(Session& session) {
  session.start();
  constexpr int kBatch = 20;
  constexpr int kWarmUp = 5;
  // Plugins whose connections take long are not to be held up for ever: fewer show leaks too.
  const auto most = kLeaksTimeFactor * session.options().timeout / 2;
  const Clock::time_point first = Clock::now();
  const auto batch = [&] {
    const Comms comms = connect_one_way(session, kBatch);
    for (void* comm : session.sender() ? comms.sends : comms.receives) {
      transfer(session, comm, {{0, 5000, 0}}, 230);
    }
    meet_and_close(session, comms);
    // The sender says whether there is time for more.
    if (session.sender()) session.own().progress.store(Clock::now() - first < most ? 1 : 0);
    session.meet();
    return (session.sender() ? session.own() : session.other()).progress.load() == 1;
  };
  // After a few connections, resources that are made once, and caches, exist.
  for (int i = 0; i < kWarmUp; ++i) batch();
  const Usage before = usage_now();
  const int asked = std::max(1, session.options().connections / kBatch);
  const Clock::time_point begin = Clock::now();
  int batches = 1;
  while (batch() && batches < asked) ++batches;
  session.own().numbers[0] =
      batches * kBatch / std::chrono::duration<double>(Clock::now() - begin).count();
  const auto count = static_cast<std::size_t>(batches) * kBatch;
  struct Need {
    std::string_view what;
    std::size_t Usage::*used;
    std::size_t room;
  };
  const std::array needs = {
      Need{"thread", &Usage::threads, 2},
      Need{"descriptor", &Usage::descriptors, std::size_t{2} * kBatch},
      Need{"mapping", &Usage::mappings, 16 + count / 10},
      Need{"byte of the heap", &Usage::heap_bytes, (std::size_t{64} << 10) + 32 * count},
      Need{"byte of memory", &Usage::resident_bytes, (std::size_t{2} << 20) + 1024 * count},
      // Names there are of all processes of the machine.
      Need{"segment in /dev/shm", &Usage::segments, 64 + count / 4},
  };
  // The last few may not have been released yet.
  Usage after;
  const auto is_kept = [&](const Need& need) {
    return after.*need.used <= before.*need.used + need.room;
  };
  static_cast<void>(session.within(std::chrono::seconds(2), [&] {
    after = usage_now();
    return std::ranges::all_of(needs, is_kept);
  }));
  for (const Need& need : needs) {
    if (is_kept(need)) continue;
    throw Failed{fmt::format("no {} left by {} connections", need.what, count),
                 fmt::format("{} before, {} after", before.*need.used, after.*need.used)};
  }
}

constexpr std::string_view kFree = "src/transport/net.cc: sendProxyFree, recvProxyFree";
constexpr std::string_view kAbort = "src/proxy.cc: ncclProxyStop; src/init.cc: commFree";
constexpr std::string_view kProgressErrors =
    "src/proxy.cc: ncclProxyProgress; src/transport/net.cc: recvProxyProgress";

constexpr Rule kClosingRules[] = {
    {"close-null", "closeSend and closeRecv take NULL",
     "Up to 2.15 a connection whose set-up failed is closed too: its comm is NULL.", kFree,
     "devices", 1, 1, check_close_null},
    {"close-order", "Either end may close first",
     "Sender and receiver end at different times; a failing close leaves the rest undone.", kFree,
     "transfer", 2, 1, check_close_order},
    {"close-pending", "A connection can be closed with requests in flight",
     "After an abort NCCL stops testing, ends the registrations and closes.", kAbort, "transfer", 2,
     1, check_close_pending},
    {"close-connecting", "A listen comm can be closed while someone connects",
     "When set-up is aborted half-way nobody closes what is pending.", kAbort, "self-connection", 1,
     1, check_close_connecting},
    {"lost-sender", "A killed sender becomes an error of the receiver, who can still clean up",
     "NCCL has no limit of its own here: without an error the job hangs.", kProgressErrors,
     "transfer", 2, 2, check_lost_sender},
    {"lost-receiver", "A killed receiver becomes an error of the sender, who can still clean up",
     "As with a killed sender.", kProgressErrors, "transfer", 2, 2, check_lost_receiver},
    {"lost-listener", "A listener that was killed hangs nobody who connects",
     "connect is polled by the thread that serves all connections.", kAbort, "connect", 2, 1,
     check_lost_listener},
    {"early-end", "Sent data arrives, even if the sender closes and ends at once",
     "A rank whose sends are done may end its communicator and its program while others receive.",
     kFree, "transfer", 2, 1, check_early_end},
    {"leaks", "Many connections leave nothing behind",
     "Jobs that run for weeks make and end communicators: memory, descriptors, threads and "
     "segments "
     "must be released.",
     kFree, "transfer", 2, kLeaksTimeFactor, check_leaks},
};

}  // namespace

std::span<const Rule> closing_rules() { return kClosingRules; }

}  // namespace ropewalk::check_plugin
