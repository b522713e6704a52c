// Rules about timing: order, progress, visibility.
#include <atomic>
#include <chrono>
#include <vector>

#include "check_plugin/connections.h"
#include "check_plugin/rules.h"
#include "check_plugin/transfers.h"

namespace ropewalk::check_plugin {
namespace {

struct OneWay {
  explicit OneWay(Session& session) {
    session.start();
    const Comms comms = connect_one_way(session);
    comm = session.sender() ? comms.sends[0] : comms.receives[0];
  }
  void* comm;
};

std::vector<Message> equal_messages(std::size_t count, std::size_t bytes) {
  std::vector<Message> messages;
  for (std::size_t i = 0; i < count; ++i) messages.push_back({i * bytes, bytes, 0});
  return messages;
}

void check_in_flight(Session& session) {
  const OneWay connection(session);
  const int most = session.plugin().most_requests();
  transfer(session, connection.comm, equal_messages(8 * static_cast<std::size_t>(most), 4096), 100,
           most);
}

void check_order(Session& session) {
  const OneWay connection(session);
  // Small and large in turn: a small one must not overtake.
  std::vector<Message> messages;
  std::size_t offset = 0;
  for (std::size_t i = 0; i < 200; ++i) {
    const std::size_t bytes = i % 3 == 0 ? 100'000 + i : i % 3 == 1 ? 8 + i % 5 : 3000 + i;
    messages.push_back({offset, bytes, 0});
    offset += bytes;
  }
  transfer(session, connection.comm, messages, 110, kSteps);
}

void check_both_ways(Session& session) {
  session.start();
  const Comms comms = connect_processes(session, 1, 1);
  // More than are in flight at once, so that each direction must make progress while the other
  // does.
  constexpr std::size_t kCount = 160;
  constexpr std::size_t kBytes = 50'000;
  const std::vector<Message> messages = equal_messages(kCount, kBytes);
  Region from(kCount * kBytes);
  Region to(kCount * kBytes);
  const std::uint64_t mine = session.sender() ? 1000 : 2000;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    from.fill(messages[i].offset, messages[i].bytes, mine + i);
  }
  void* from_handle = from.register_on(session, comms.sends[0]);
  void* to_handle = to.register_on(session, comms.receives[0]);
  session.in_thread([&] {
    Sends sends(session, comms.sends[0], from, from_handle, messages);
    Receives receives(session, comms.receives[0], to, to_handle, single_slots(messages));
    receives.on_done = [&](std::size_t i) {
      const std::uint64_t theirs = session.sender() ? 2000 : 1000;
      if (const auto wrong = to.difference(messages[i].offset, messages[i].bytes, theirs + i)) {
        throw Failed{fmt::format("message {} as it was sent", i), *wrong};
      }
    };
    run(session, "messages both ways complete", sends, receives);
  });
}

void check_sends_first(Session& session) {
  const OneWay connection(session);
  constexpr std::size_t kBytes = 65'536;
  const std::vector<Message> messages = equal_messages(kSteps, kBytes);
  Region region(kSteps * kBytes);
  void* mhandle = region.register_on(session, connection.comm);
  if (session.sender()) {
    for (std::size_t i = 0; i < messages.size(); ++i) region.fill(i * kBytes, kBytes, i);
    Sends sends(session, connection.comm, region, mhandle, messages);
    // What the plugin takes, while nothing is posted at the other end.
    for (int i = 0; i < 100; ++i) sends.step();
    session.meet();
    run(session, "all sends complete", sends);
    return;
  }
  session.meet();
  Receives receives(session, connection.comm, region, mhandle, single_slots(messages));
  run(session, "receives that are posted after the sends complete", receives);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (const auto wrong = region.difference(i * kBytes, kBytes, i)) {
      throw Failed{fmt::format("message {} as it was sent", i), *wrong};
    }
  }
}

void check_receives_first(Session& session) {
  const OneWay connection(session);
  constexpr std::size_t kBytes = 65'536;
  const std::vector<Message> messages = equal_messages(kSteps, kBytes);
  Region region(kSteps * kBytes);
  void* mhandle = region.register_on(session, connection.comm);
  if (session.receiver()) {
    Receives receives(session, connection.comm, region, mhandle, single_slots(messages));
    for (int i = 0; i < 100; ++i) {
      receives.step();
      if (receives.completed() > 0) {
        throw Failed{"no receive completes before anything was sent", "test says done"};
      }
    }
    session.meet();
    run(session, "all receives complete", receives);
    return;
  }
  session.meet();
  Sends sends(session, connection.comm, region, mhandle, messages);
  run(session, "all sends complete", sends);
}

// Only the last request is tested: the others must move all the same.
void check_any_request(Session& session) {
  const OneWay connection(session);
  if (session.properties().max_recvs < 2) {
    throw Skipped{"operations that share a connection: maxRecvs is 1"};
  }
  constexpr std::size_t kBytes = std::size_t{1} << 20;
  constexpr std::size_t kCount = 4;
  Region region(kCount * kBytes);
  void* mhandle = region.register_on(session, connection.comm);
  std::vector<void*> untested;
  void* last = nullptr;
  std::size_t posted = 0;
  // A plugin may take fewer at once: the next is posted when it takes it.
  session.wait("4 messages complete while only the last request is tested", [&] {
    if (posted < kCount) {
      const Part part{region.at(posted * kBytes), kBytes, 0, mhandle};
      void* request = session.sender() ? post_send(session, connection.comm, part)
                                       : post_receive(session, connection.comm, {part});
      if (request != nullptr) {
        if (last != nullptr) untested.push_back(last);
        last = request;
        ++posted;
      }
    }
    if (last != nullptr && test_request(session, last, nullptr)) last = nullptr;
    return posted == kCount && last == nullptr;
  });
  for (void* request : untested) {
    session.wait("the requests before it complete",
                 [&] { return test_request(session, request, nullptr); });
  }
}

void check_last_receive(Session& session) {
  const OneWay connection(session);
  constexpr std::size_t kBytes = 200'000;
  const std::vector<Message> messages = equal_messages(16, kBytes);
  Region region(16 * kBytes);
  void* mhandle = region.register_on(session, connection.comm);
  if (session.sender()) {
    Sends sends(session, connection.comm, region, mhandle, messages);
    run(session, "sends complete without further calls of the receiver", sends);
  } else {
    Receives receives(session, connection.comm, region, mhandle, single_slots(messages));
    run(session, "all receives complete", receives);
  }
  // The receiver waits here, and calls nothing.
  session.meet();
}

void check_late_writes(Session& session) {
  const OneWay connection(session);
  constexpr std::size_t kSlot = 32'768;
  constexpr std::size_t kSlots = 4;
  constexpr std::size_t kRounds = 400;
  Region region(kSlots * kSlot);
  void* mhandle = region.register_on(session, connection.comm);
  std::vector<Message> messages;
  for (std::size_t i = 0; i < kRounds; ++i) {
    messages.push_back({i % kSlots * kSlot, i % 5 == 0 ? kSlot : 64 + i % 1000, 0});
  }
  session.in_thread([&] {
    if (session.sender()) {
      Sends sends(session, connection.comm, region, mhandle, messages, kSlots);
      std::size_t written = 0;
      sends.may_post = [&](std::size_t i) {
        if (i >= written) {
          region.fill(messages[i].offset, messages[i].bytes, i);
          written = i + 1;
        }
        return true;
      };
      run(session, "all sends complete", sends);
      return;
    }
    // Two slots are posted, two are not: data received in the latter must stay unchanged.
    Receives receives(session, connection.comm, region, mhandle, single_slots(messages),
                      kSlots / 2);
    receives.on_done = [&](std::size_t i) {
      const Message& message = messages[i];
      if (const auto wrong = region.difference(message.offset, message.bytes, i)) {
        throw Failed{fmt::format("message {} complete when test says done", i), *wrong};
      }
      region.blank(message.offset, kSlot);
      if (i > 0 && i + 1 < kRounds) {
        const std::size_t resting = (i - 1) % kSlots * kSlot;
        if (const auto at = region.first_written(resting, kSlot)) {
          throw Failed{"no write into a buffer after its receive completed",
                       fmt::format("byte {} was written again", *at)};
        }
      }
    };
    run(session, "all receives complete", receives);
  });
}

// The receiver's GPU polls lines of data and flag itself, before and without test. A line is
// `Words` data words and a flag in its last word; a round has a flag of its own.
template <typename Word, std::size_t kWords>
class Lines {
 public:
  static constexpr std::size_t kLineBytes = (kWords + 1) * sizeof(Word);

  static void write(std::byte* slot, std::size_t lines, std::uint64_t round) {
    Word* words = reinterpret_cast<Word*>(slot);
    for (std::size_t line = 0; line < lines; ++line) {
      for (std::size_t i = 0; i < kWords; ++i) *words++ = data(round, line, i);
      *words++ = flag(round);
    }
  }

  /// Whether line has the round's flag.
  /// @throws Failed when it does, but not its data
  static bool arrived(std::byte* slot, std::size_t line, std::uint64_t round) {
    Word* words = reinterpret_cast<Word*>(slot + line * kLineBytes);
    if (std::atomic_ref(words[kWords]).load(std::memory_order_acquire) != flag(round)) return false;
    for (std::size_t i = 0; i < kWords; ++i) {
      const Word found = std::atomic_ref(words[i]).load(std::memory_order_relaxed);
      if (found != data(round, line, i)) {
        throw Failed{"a line's data is there when its flag is",
                     fmt::format("round {}, line {}: the flag without word {}", round, line, i)};
      }
    }
    return true;
  }

 private:
  static Word flag(std::uint64_t round) { return static_cast<Word>(round + 1); }
  static Word data(std::uint64_t round, std::size_t line, std::size_t word) {
    return static_cast<Word>((round + 1) * 0x9e3779b9U + line * 131 + word * 7 + 1);
  }
};

template <typename Line>
void check_lines(Session& session, std::size_t slot_bytes) {
  const OneWay connection(session);
  constexpr std::size_t kRounds = 96;
  const std::size_t lines = slot_bytes / Line::kLineBytes;
  Region region(kSteps * slot_bytes);
  void* mhandle = region.register_on(session, connection.comm);
  std::vector<Message> messages;
  for (std::size_t i = 0; i < kRounds; ++i) {
    messages.push_back({i % kSteps * slot_bytes, slot_bytes, 0});
  }
  if (session.sender()) {
    Sends sends(session, connection.comm, region, mhandle, messages, kSteps);
    std::size_t written = 0;
    sends.may_post = [&](std::size_t i) {
      if (i >= written) {
        Line::write(region.at(messages[i].offset), lines, i);
        written = i + 1;
      }
      return true;
    };
    run(session, "all sends complete", sends);
    return;
  }
  std::atomic<std::size_t> read{0};  // rounds that the poller has seen
  session.in_threads({
      [&] {
        // A slot is posted again when the poller is through with it.
        std::size_t completed = 0;
        std::vector<void*> requests;
        std::size_t posted = 0;
        session.wait("all receives complete", [&] {
          while (posted < kRounds && posted < read.load() + kSteps && posted - completed < kSteps) {
            const Part part{region.at(messages[posted].offset), slot_bytes, 0, mhandle};
            void* request =
                post_receive(session, connection.comm, {part}, session.plugin().version() >= 9);
            if (request == nullptr) break;
            requests.push_back(request);
            ++posted;
          }
          while (completed < posted && test_request(session, requests[completed], nullptr)) {
            ++completed;
          }
          return completed == kRounds;
        });
      },
      [&] {
        for (std::size_t round = 0; round < kRounds; ++round) {
          for (std::size_t line = 0; line < lines; ++line) {
            session.wait(fmt::format("line {} of round {} comes", line, round), [&] {
              return Line::arrived(region.at(messages[round].offset), line, round);
            });
          }
          read.store(round + 1);
        }
      },
  });
}

void check_ll_lines(Session& session) { check_lines<Lines<std::uint32_t, 1>>(session, 16'384); }

void check_ll128_lines(Session& session) { check_lines<Lines<std::uint64_t, 15>>(session, 61'440); }

void check_fairness(Session& session) {
  session.start();
  constexpr std::size_t kConnections = 4;
  constexpr std::size_t kMessages = 400;
  constexpr std::size_t kBytes = 16'384;
  const Comms comms = connect_one_way(session, kConnections);
  const std::vector<void*>& own = session.sender() ? comms.sends : comms.receives;
  Region region(kConnections * kSteps * kBytes);
  std::vector<Message> messages(kMessages);
  std::vector<Sends> sends;
  std::vector<Receives> receives;
  for (std::size_t c = 0; c < kConnections; ++c) {
    void* mhandle = region.register_on(session, own[c]);
    for (std::size_t i = 0; i < kMessages; ++i) {
      messages[i] = {(c * kSteps + i % kSteps) * kBytes, kBytes, 0};
    }
    sends.emplace_back(session, own[c], region, mhandle, messages, kSteps / 2);
    receives.emplace_back(session, own[c], region, mhandle, single_slots(messages), kSteps / 2);
  }
  std::size_t least = kMessages;  // of the others when the first has all
  bool first_ended = false;
  session.in_thread([&] {
    session.wait("messages over all connections complete", [&] {
      bool done = true;
      for (std::size_t c = 0; c < kConnections; ++c) {
        done = (session.sender() ? sends[c].step() : receives[c].step()) && done;
      }
      if (session.sender() || first_ended) return done;
      for (const Receives& each : receives) first_ended |= each.completed() == kMessages;
      if (first_ended) {
        for (const Receives& each : receives) least = std::min(least, each.completed());
      }
      return done;
    });
  });
  if (session.sender()) return;
  session.own().numbers[0] = static_cast<double>(least) / kMessages;
  if (least < kMessages / 4) {
    throw Failed{"connections that share a thread go on at a like rate",
                 fmt::format("one had {} of {} messages when another had all", least, kMessages)};
  }
}

constexpr std::string_view kProgress = "src/transport/net.cc: sendProxyProgress, recvProxyProgress";

constexpr Rule kOrderingRules[] = {
    {"in-flight", "As many requests as NCCL may have are in flight",
     "NCCL_NET_MAX_REQUESTS of the net.h of the version: 8 up to version 7, 32 from version 8 on; "
     "a "
     "plugin that cannot gives a NULL request.",
     kProgress, "transfer", 2, 1, check_in_flight},
    {"order", "Messages arrive in the order in which they were sent",
     "The k-th send meets the k-th receive, whatever the sizes are.", kProgress, "transfer", 2, 1,
     check_order},
    {"both-ways", "Messages go in both directions at once",
     "Each rank of a ring sends and receives.", kProgress, "transfer", 2, 1, check_both_ways},
    {"sends-first", "Sends may come before their receives",
     "The peer posts when its GPU is ready; until then isend waits or gives NULL.", kProgress,
     "transfer", 2, 1, check_sends_first},
    {"receives-first", "Receives may come before their sends, and wait for them",
     "A receive that completes before its message arrived passes garbage to the GPU.", kProgress,
     "transfer", 2, 1, check_receives_first},
    {"any-request", "test drives all requests of a connection, whichever is tested",
     "With maxRecvs above 1 several operations share a connection; NCCL tests the oldest of each.",
     kProgress, "transfer", 2, 1, check_any_request},
    {"last-receive", "A send completes without further calls of the receiver",
     "After its last receive is done a rank may never call that connection again.", kProgress,
     "transfer", 2, 1, check_last_receive},
    {"late-writes", "Nothing is written into a buffer after its receive completed",
     "The slot is used again at once; in LL the old flags would be taken for new ones.", kProgress,
     "transfer", 2, 1, check_late_writes},
    {"ll-lines", "Each aligned 8 bytes are written at once, or data before flag",
     "The GPU polls 4 bytes of data and 4 of flag in the receive buffer (protocol LL).",
     "src/device/prims_ll.h", "transfer", 2, 1, check_ll_lines},
    {"ll128-lines", "Each 128 bytes become visible in order, the last 8 last",
     "The GPU polls lines of 120 bytes of data and 8 of flag (protocol LL128).",
     "src/device/prims_ll128.h", "transfer", 2, 1, check_ll128_lines},
    {"fairness", "Connections that one thread drives share it",
     "A collective is as slow as its slowest channel.", kProgress, "transfer", 2, 2,
     check_fairness},
};

}  // namespace

std::span<const Rule> ordering_rules() { return kOrderingRules; }

}  // namespace ropewalk::check_plugin
