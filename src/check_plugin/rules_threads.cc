// Rules about several communicators and threads.
#include <functional>
#include <vector>

#include "check_plugin/connections.h"
#include "check_plugin/rules.h"
#include "check_plugin/transfers.h"

namespace ropewalk::check_plugin {
namespace {

constexpr int kThreads = 4;

// The whole life of a communicator, in threads that know nothing of each other.
void check_threads(Session& session) {
  session.start();
  std::vector<std::function<void()>> bodies;
  for (int t = 0; t < kThreads; ++t) {
    bodies.emplace_back([&session, t] {
      for (int life = 0; life < 5; ++life) {
        void* context = session.plugin().has_contexts() ? session.new_context() : session.context();
        const Comms comms = connect_self(session, context, 2);
        for (std::size_t i = 0; i < comms.sends.size(); ++i) {
          constexpr std::size_t kBytes = 20'000;
          const std::uint64_t seed = static_cast<std::uint64_t>(t * 1000 + life * 10) + i;
          std::vector<Message> messages;
          for (std::size_t m = 0; m < 40; ++m) messages.push_back({m % 8 * kBytes, kBytes, t});
          Region from(8 * kBytes);
          Region to(8 * kBytes);
          for (std::size_t m = 0; m < 8; ++m) from.fill(m * kBytes, kBytes, seed + 100 * m);
          void* from_handle = from.register_on(session, comms.sends[i]);
          void* to_handle = to.register_on(session, comms.receives[i]);
          Sends sends(session, comms.sends[i], from, from_handle, messages);
          Receives receives(session, comms.receives[i], to, to_handle, single_slots(messages));
          receives.on_done = [&](std::size_t number) {
            const std::size_t slot = number % 8;
            if (const auto wrong = to.difference(slot * kBytes, kBytes, seed + 100 * slot)) {
              throw Failed{fmt::format("message {} of thread {} as it was sent", number, t),
                           *wrong};
            }
          };
          run(session, "messages of every thread complete", sends, receives);
          session.expect(session.plugin().dereg_mr(comms.sends[i], from_handle), Call::kDeregMr);
          session.expect(session.plugin().dereg_mr(comms.receives[i], to_handle), Call::kDeregMr);
        }
        close_comms(session, comms);
        if (session.plugin().has_contexts()) session.end_context(context);
      }
    });
  }
  session.in_threads(bodies);
  session.end_context(session.context());
}

// One progress thread for each connection between two processes.
void check_parallel(Session& session) {
  session.start();
  const Comms comms = connect_one_way(session, kThreads);
  std::vector<std::function<void()>> bodies;
  for (std::size_t t = 0; t < kThreads; ++t) {
    bodies.emplace_back([&session, &comms, t] {
      std::vector<Message> messages;
      for (std::size_t i = 0; i < 200; ++i) messages.push_back({i * 5000, 4000 + i, 0});
      transfer(session, session.sender() ? comms.sends[t] : comms.receives[t], messages,
               10'000 * t);
    });
  }
  session.in_threads(bodies);
  meet_and_close(session, comms);
}

constexpr Rule kThreadsRules[] = {
    {"threads", "Communicators live in several threads at once",
     "A process with several GPUs has two threads for each communicator, and makes and ends them "
     "at "
     "the same time.",
     "src/proxy.cc: ncclProxyService, ncclProxyProgress", "transfer", 1, 2, check_threads},
    {"parallel", "Connections are driven by several threads at once",
     "Only calls on the same connection come from one thread.", "src/proxy.cc: ncclProxyProgress",
     "transfer", 2, 2, check_parallel},
};

}  // namespace

std::span<const Rule> thread_rules() { return kThreadsRules; }

}  // namespace ropewalk::check_plugin
