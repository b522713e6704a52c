// Joining with wrong arguments, missing and dying ranks, and strangers on the port.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <thread>

#include "bootstrap/bootstrap.h"
#include "bootstrap/handshake.h"
#include "bootstrap/join_protocol.h"
#include "bootstrap/listener.h"
#include "bootstrap/test_support.h"
#include "core/socket.h"
#include "core/testing/sanitizers.h"

namespace ropewalk::bootstrap {
namespace {

struct Attempt {
  int rank;
  int size;
};
using Outcome = std::pair<Errc, std::string>;

/// Joins as each of `attempts` at once. Those who get in leave again.
std::vector<Outcome> join_all(const UniqueId& id, const std::vector<Attempt>& attempts,
                              Deadline deadline, Context& context) {
  std::vector<Outcome> outcomes(attempts.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < attempts.size(); ++i) {
    threads.emplace_back([&, i] {
      outcomes[i] = error_of([&] {
        Bootstrap::join(id, attempts[i].rank, attempts[i].size, quiet_config(), deadline, context)
            ->leave();
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

bool joined(const Outcome& outcome) { return outcome.second == "no error"; }

/// A stranger's blocking connection.
FileDescriptor stranger(const UniqueId& id) {
  FileDescriptor socket = start_connect(decode_unique_id(id).address);
  pollfd waiting{socket.get(), POLLOUT, 0};
  EXPECT_EQ(poll(&waiting, 1, 30'000), 1);
  return socket;
}

/// Reads until the other end closes, at most `limit` bytes.
/// @return how many
std::size_t read_to_end(const FileDescriptor& socket, std::size_t limit) {
  std::size_t total = 0;
  std::vector<char> buffer(65536);
  while (total < limit) {
    pollfd waiting{socket.get(), POLLIN, 0};
    if (poll(&waiting, 1, 30'000) != 1) {
      ADD_FAILURE() << "the other end did not close";
      break;
    }
    const ssize_t got = recv(socket.get(), buffer.data(), buffer.size(), 0);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) break;
    if (got > 0) total += static_cast<std::size_t>(got);
  }
  return total;
}

TEST(Join, TwoRanksWithOneNumberIsAnErrorOnAll) {
  Context context;
  const UniqueId id = make_unique_id(quiet_config(), context);
  for (const Outcome& outcome : join_all(id, {{0, 4}, {1, 4}, {1, 4}, {2, 4}}, soon(), context)) {
    EXPECT_EQ(outcome.first, Errc::kInvalidUsage);
    EXPECT_NE(outcome.second.find("rank 1 of 4 was given to two callers"), std::string::npos)
        << outcome.second;
  }
}

TEST(Join, DifferentNumbersOfRanksIsAnErrorOnAll) {
  Context context;
  const UniqueId id = make_unique_id(quiet_config(), context);
  for (const Outcome& outcome : join_all(id, {{0, 3}, {1, 4}, {2, 3}}, soon(), context)) {
    EXPECT_EQ(outcome.first, Errc::kInvalidArgument);
    EXPECT_NE(outcome.second.find("number of ranks differs"), std::string::npos) << outcome.second;
    EXPECT_NE(outcome.second.find("rank 1 gives 4"), std::string::npos) << outcome.second;
  }
}

TEST(Join, ARankOutsideTheSizeIsAnErrorOnAll) {
  for (const int wrong : {3, 1000, -1}) {
    Context context;
    const UniqueId id = make_unique_id(quiet_config(), context);
    for (const Outcome& outcome : join_all(id, {{0, 3}, {wrong, 3}, {1, 3}}, soon(), context)) {
      EXPECT_EQ(outcome.first, Errc::kInvalidArgument);
      EXPECT_NE(outcome.second.find("outside 0 to 2"), std::string::npos) << outcome.second;
    }
  }
}

TEST(Join, ASenselessNumberOfRanksIsRefused) {
  for (const int size : {0, -1, 2'000'000'000}) {
    Context context;
    const UniqueId id = make_unique_id(quiet_config(), context);
    EXPECT_EQ(join_all(id, {{0, size}}, soon(), context)[0].first, Errc::kInvalidArgument);
  }
}

TEST(Join, AUsedIdIsRefused) {
  Context context;
  const UniqueId id = make_unique_id(quiet_config(), context);
  for (const Outcome& outcome : join_all(id, {{0, 2}, {1, 2}}, soon(), context)) {
    EXPECT_TRUE(joined(outcome)) << outcome.second;
  }
  for (const Outcome& outcome : join_all(id, {{0, 2}, {1, 2}}, soon(), context)) {
    EXPECT_EQ(outcome.first, Errc::kInvalidUsage);
    EXPECT_NE(outcome.second.find("used already"), std::string::npos) << outcome.second;
  }
}

TEST(Join, AnIdWhosePortServesAnotherIdIsRefused) {
  Context context;
  const UniqueId id = make_unique_id(quiet_config(), context);
  UniqueIdParts parts = decode_unique_id(id);
  parts.service[0] ^= 1;
  const Outcome outcome = join_all(encode_unique_id(parts), {{0, 1}}, soon(), context)[0];
  EXPECT_EQ(outcome.first, Errc::kInvalidUsage);
  EXPECT_NE(outcome.second.find("another unique id"), std::string::npos) << outcome.second;
}

TEST(Join, MissingRanksAreNamedToThoseThatCame) {
  Context context;
  const UniqueId id = make_unique_id(quiet_config(), context);
  // Long enough that both have reported to the root; if not, the root names one more.
  for (const Outcome& outcome : join_all(id, {{0, 7}, {3, 7}}, in_ms(1500), context)) {
    EXPECT_EQ(outcome.first, Errc::kTimeout);
    EXPECT_NE(outcome.second.find("ranks 1, 2, 4-6 of 7 did not join"), std::string::npos)
        << outcome.second;
  }
  // One that comes too late learns why.
  const Outcome late = join_all(id, {{1, 7}}, soon(), context)[0];
  EXPECT_EQ(late.first, Errc::kTimeout);
  EXPECT_NE(late.second.find("2, 4-6"), std::string::npos) << late.second;
}

TEST(Join, ARootThatDoesNotAnswerIsATimeout) {
  SocketAddress address;
  SocketAddress any = resolve("127.0.0.1:1").front();
  any.set_port(0);
  const FileDescriptor silent = listen_on(any, &address);
  UniqueIdParts parts;
  parts.address = address;
  Context context;
  const Outcome outcome = join_all(encode_unique_id(parts), {{0, 2}}, in_ms(50), context)[0];
  EXPECT_EQ(outcome.first, Errc::kTimeout);
  EXPECT_NE(outcome.second.find(address.text()), std::string::npos) << outcome.second;
}

/// A rank as bytes: proves the secret, then its socket closes.
void come_and_die(const UniqueId& id, int rank, int size) {
  const UniqueIdParts parts = decode_unique_id(id);
  FileDescriptor socket = stranger(id);
  Claims claims;
  claims.rank = rank;
  claims.size = size;
  Session session = Session::client(parts.secret, parts.service, claims);
  while (!session.established()) {
    pollfd waiting{socket.get(), POLLIN, 0};
    ASSERT_EQ(poll(&waiting, 1, 30'000), 1);
    std::array<std::byte, 256> buffer{};
    const ssize_t got = recv(socket.get(), buffer.data(), buffer.size(), 0);
    ASSERT_GT(got, 0);
    session.feed(std::span(buffer).first(static_cast<std::size_t>(got)));
    while (!session.output().empty()) {
      const ssize_t sent =
          send(socket.get(), session.output().data(), session.output().size(), MSG_NOSIGNAL);
      ASSERT_GT(sent, 0);
      session.consume(static_cast<std::size_t>(sent));
    }
  }
}

TEST(Join, ARankThatDiesWhileJoiningIsNamed) {
  Context context;
  const UniqueId id = make_unique_id(quiet_config(), context);
  Outcome outcome;
  std::thread rank0([&] { outcome = join_all(id, {{0, 3}}, soon(), context)[0]; });
  come_and_die(id, 2, 3);
  rank0.join();
  EXPECT_EQ(outcome.first, Errc::kPeerLost);
  EXPECT_NE(outcome.second.find("rank 2 of 3 died"), std::string::npos) << outcome.second;
}

TEST(Join, ARankThatComesAfterThatLearnsItAlthoughTheMakerOfTheIdEnds) {
  auto maker = std::make_unique<Context>();
  const UniqueId id = make_unique_id(quiet_config(), *maker);
  Outcome first;
  std::thread rank0([&] {
    first = join_all(id, {{0, 3}}, soon(), *maker)[0];
    maker.reset();
  });
  // So that the root knows that it is in its process.
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  come_and_die(id, 2, 3);
  // So that the maker of the id would have ended if it were notified at once.
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  Context context;
  const Outcome late = join_all(id, {{1, 3}}, soon(), context)[0];
  rank0.join();
  for (const Outcome& outcome : {first, late}) {
    EXPECT_EQ(outcome.first, Errc::kPeerLost);
    EXPECT_NE(outcome.second.find("rank 2 of 3 died"), std::string::npos) << outcome.second;
  }
}

TEST(Join, TheMakerOfTheIdEndingIsAnError) {
  auto maker = std::make_unique<Context>();
  const UniqueId id = make_unique_id(quiet_config(), *maker);
  Context context;
  Outcome outcome;
  std::thread rank0([&] { outcome = join_all(id, {{0, 2}}, soon(), context)[0]; });
  // Whether rank 0 has come yet or not, it gets an error.
  maker.reset();
  rank0.join();
  EXPECT_TRUE(outcome.first == Errc::kPeerLost || outcome.first == Errc::kInvalidUsage)
      << outcome.second;
}

// Joins again and again, in two processes of which `poor` has few descriptors, until one cannot.
// @return what each rank's last attempt ended with
std::vector<std::string> join_until_descriptors_run_out(int poor, rlim_t limit) {
  std::array<std::array<int, 2>, 2> reports{};  // of each rank to the test
  std::array<int, 2> ids{};                     // of rank 0 to rank 1
  EXPECT_EQ(pipe(ids.data()), 0);
  std::array<pid_t, 2> ranks{};
  for (int rank = 0; rank < 2; ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    EXPECT_EQ(pipe(reports[r].data()), 0);
    ranks[r] = fork();
    if (ranks[r] != 0) continue;
    if (rank == poor) {
      const rlimit few{limit, limit};
      setrlimit(RLIMIT_NOFILE, &few);
    }
    std::string text = "joined each time";
    Context context;
    std::vector<std::unique_ptr<Bootstrap>> joined;
    try {
      for (int i = 0; i < 64; ++i) {
        UniqueId id{};
        if (rank == 0) {
          id = make_unique_id(quiet_config(), context);
          (void)!write(ids[1], id.data(), id.size());
        } else {
          (void)!read(ids[0], id.data(), id.size());
        }
        joined.push_back(Bootstrap::join(id, rank, 2, quiet_config(), in_ms(5'000), context));
      }
    } catch (const Error& error) {
      text = error.what();
    }
    (void)!write(reports[r][1], text.data(), text.size());
    _exit(0);
  }
  close(ids[0]);
  close(ids[1]);
  std::vector<std::string> ends;
  for (std::size_t r = 0; r < 2; ++r) {
    close(reports[r][1]);
    std::array<char, 512> text{};
    const ssize_t got = read(reports[r][0], text.data(), text.size());
    ends.emplace_back(text.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    close(reports[r][0]);
    waitpid(ranks[r], nullptr, 0);
  }
  return ends;
}

TEST(Join, WithoutDescriptorsIsAnErrorOfTheSystemAtOnce) {
  if (ropewalk::testing::kAddressSanitizer) {
    GTEST_SKIP()
        << "the sanitizer of undefined behaviour, built beside that of addresses, looks at "
           "objects through pipes, and without descriptors takes good ones for bad";
  }
  const auto begin = std::chrono::steady_clock::now();
  for (const int poor : {0, 1}) {
    // Whatever is asked for first when none is left.
    for (rlim_t limit = 50; limit < 58; ++limit) {
      const std::vector<std::string> ends = join_until_descriptors_run_out(poor, limit);
      EXPECT_NE(ends[static_cast<std::size_t>(poor)].find("Too many open files"), std::string::npos)
          << "rank " << poor << " with " << limit << ": " << ends[0] << "; " << ends[1];
    }
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(50));
}

TEST(Strangers, GetTheChallengeAndNothingElse) {
  Context context;
  const UniqueId id = make_unique_id(quiet_config(), context);
  {
    const FileDescriptor socket = stranger(id);
    EXPECT_EQ(read_to_end(socket, Session::kChallengeBytes), Session::kChallengeBytes);
    const std::vector<char> garbage(Session::kResponseBytes, 'x');
    ASSERT_EQ(send(socket.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(garbage.size()));
    EXPECT_EQ(read_to_end(socket, 10'000), 0);
  }
  {
    // Knows the public part and the protocol, not the secret.
    UniqueIdParts parts = decode_unique_id(id);
    parts.secret[5] ^= 1;
    const auto [code, text] = join_all(encode_unique_id(parts), {{0, 1}}, in_ms(100), context)[0];
    EXPECT_EQ(code, Errc::kTimeout) << text;
  }
  // The id is still valid.
  const Outcome outcome = join_all(id, {{0, 1}}, soon(), context)[0];
  EXPECT_TRUE(joined(outcome)) << outcome.second;
}

TEST(Strangers, AnEndlessStreamIsCutOff) {
  Context context;
  const UniqueId id = make_unique_id(quiet_config(), context);
  const FileDescriptor socket = stranger(id);
  const std::vector<char> garbage(65536, 'x');
  std::size_t sent_total = 0;
  for (;;) {
    const ssize_t sent = send(socket.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      sent_total += static_cast<std::size_t>(sent);
      ASSERT_LT(sent_total, std::size_t{256} << 20) << "the server goes on reading";
      continue;
    }
    if (errno != EAGAIN && errno != EWOULDBLOCK) break;
    pollfd waiting{socket.get(), POLLOUT, 0};
    ASSERT_EQ(poll(&waiting, 1, 30'000), 1);
  }
  const Outcome outcome = join_all(id, {{0, 1}}, soon(), context)[0];
  EXPECT_TRUE(joined(outcome)) << outcome.second;
}

TEST(Strangers, HalfOpenOnesAreBoundedAndDoNotKeepRanksOut) {
  raise_descriptor_limit();
  Context context;
  const UniqueId id = make_unique_id(quiet_config(), context);
  std::vector<FileDescriptor> idle;
  for (std::size_t i = 0; i < Listener::kMaxPending + 100; ++i) idle.push_back(stranger(id));
  // The oldest were pushed out.
  for (std::size_t i = 0; i < 50; ++i) {
    EXPECT_LE(read_to_end(idle[i], 10'000), Session::kChallengeBytes);
  }
  for (const Outcome& outcome : join_all(id, {{0, 4}, {1, 4}, {2, 4}, {3, 4}}, soon(), context)) {
    EXPECT_TRUE(joined(outcome)) << outcome.second;
  }
}

TEST(Strangers, AFloodDoesNotKeepRanksOut) {
  Context context;
  const UniqueId id = make_unique_id(quiet_config(), context);
  std::atomic<bool> over{false};
  std::vector<std::thread> attackers;
  for (int i = 0; i < 2; ++i) {
    attackers.emplace_back([&, i] {
      std::vector<FileDescriptor> open;
      while (!over) {
        try {
          open.push_back(start_connect(decode_unique_id(id).address));
        } catch (const Error&) {
          // The root has done its work and listens no more.
        }
        if (open.size() > 200) open.erase(open.begin(), open.begin() + 150);
        if (i == 1 && !open.empty()) {
          (void)send(open.back().get(), "garbage", 7, MSG_NOSIGNAL);
        }
      }
    });
  }
  std::vector<Attempt> ranks;
  for (int rank = 0; rank < 8; ++rank) ranks.push_back({rank, 8});
  const std::vector<Outcome> outcomes = join_all(id, ranks, soon(), context);
  over = true;
  for (std::thread& thread : attackers) thread.join();
  for (const Outcome& outcome : outcomes) EXPECT_TRUE(joined(outcome)) << outcome.second;
}

TEST(Collectives, ADifferentLengthIsNamed) {
  Context context;
  const UniqueId id = make_unique_id(quiet_config(), context);
  std::vector<Outcome> outcomes(3);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      outcomes[static_cast<std::size_t>(rank)] = error_of([&] {
        const auto self = Bootstrap::join(id, rank, 3, quiet_config(), soon(), context);
        std::vector<std::byte> all(rank == 2 ? 12 : 24);
        try {
          self->all_gather(all, rank == 2 ? 4 : 8, soon());
        } catch (const Error& error) {
          self->abort(error.what());
          throw;
        }
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Outcome& outcome : outcomes) {
    EXPECT_NE(outcome.second.find("rank 2 gave 4 bytes"), std::string::npos) << outcome.second;
  }
}

TEST(Collectives, ADeadlineNamesTheRankThatDidNotCome) {
  run_ranks(2, [](Bootstrap& self) {
    if (self.rank() == 1) {
      const auto [code, text] = error_of([&] { (void)self.recv(0, 7, in_ms(20)); });
      EXPECT_EQ(code, Errc::kTimeout);
      EXPECT_NE(text.find("rank 0"), std::string::npos) << text;
    }
    self.barrier(soon());
  });
}

}  // namespace
}  // namespace ropewalk::bootstrap
