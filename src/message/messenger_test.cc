// The messenger between ranks that share no memory, without a communicator around it.
#include "message/messenger.h"

#include <gtest/gtest.h>

#include <barrier>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "bootstrap/failure_state.h"
#include "bootstrap/test_support.h"
#include "transport/registry.h"

namespace ropewalk::message {
namespace {

using bootstrap::quiet_config;
using bootstrap::soon;

constexpr std::chrono::milliseconds kPeerLossTime{50};

Messenger::Options over_shm(bootstrap::Bootstrap& bootstrap, std::optional<Error>& failure) {
  Messenger::Options options;
  options.reach.resize(static_cast<std::size_t>(bootstrap.size()));
  options.reach[static_cast<std::size_t>(bootstrap.rank())].local_rank = 0;
  options.timeout = [] { return std::chrono::nanoseconds(std::chrono::seconds(60)); };
  options.peer_loss_time = kPeerLossTime;
  options.make_links = [&bootstrap](link::NetworkLinks::Options its) {
    return std::make_unique<link::NetworkLinks>(
        bootstrap, transport::make_transport("shm", quiet_config()), std::move(its));
  };
  options.on_error = [&failure](const Error& error) { failure = error; };
  return options;
}

// As a communicator with GPUs has it: a rank that has finished waits for the others' kernels before
// it leaves, for longer than a peer waits to hear that a rank whose links are closed has left.
TEST(MessengerTest, FinishingLeavesTheLinksOpenForRanksThatAreLater) {
  std::barrier<> both(2);
  bootstrap::run_ranks(2, [&](bootstrap::Bootstrap& bootstrap) {
    const int rank = bootstrap.rank();
    bootstrap::FailureState state;
    std::optional<Error> failure;
    Messenger messenger(bootstrap, state, over_shm(bootstrap, failure));
    WindowSpec given;
    given.bytes = 64;
    Window& window = messenger.create_window(given, soon());
    OperationSpec signal;
    signal.kind = OperationKind::kSignal;
    signal.window = &window;
    signal.peer = 1 - rank;
    signal.count = 1;
    messenger.run(signal);
    OperationSpec wait = signal;
    wait.kind = OperationKind::kWaitSignal;
    messenger.run(wait);
    if (rank == 1) messenger.finish();
    both.arrive_and_wait();
    if (rank == 0) {
      messenger.help([&] { return failure.has_value(); },
                     std::chrono::steady_clock::now() + 2 * kPeerLossTime);
      EXPECT_NO_THROW(messenger.finish());
    }
    EXPECT_FALSE(failure.has_value()) << failure->what();
    both.arrive_and_wait();
    messenger.leave();
  });
}

}  // namespace
}  // namespace ropewalk::message
