// Two hosts, as two network namespaces joined by a veth pair. Needs the right to make namespaces.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "bootstrap/test_processes.h"

namespace ropewalk::bootstrap {
namespace {

bool run(const std::string& command) {
  return std::system((command + " > /dev/null 2>&1").c_str()) == 0;
}

/// Both ends of a pipe.
struct Pipe {
  Pipe() { EXPECT_EQ(pipe2(fd.data(), O_CLOEXEC), 0); }
  ~Pipe() {
    close(fd[0]);
    close(fd[1]);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  template <typename T>
  void put(const T& value) const {
    (void)!::write(fd[1], &value, sizeof value);
  }
  template <typename T>
  T get() const {
    T value{};
    pollfd waiting{fd[0], POLLIN, 0};
    if (poll(&waiting, 1, 60'000) == 1) (void)!::read(fd[0], &value, sizeof value);
    return value;
  }
  std::array<int, 2> fd{};
};

/// Ranks `first` and `first` + 1 of four, as threads with a service each; ends on a command.
void two_ranks(int first, const UniqueId& id, const Config& config, const Pipe& commands,
               const Pipe& events) {
  std::vector<std::thread> threads;
  std::vector<std::unique_ptr<Bootstrap>> ranks(2);
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      try {
        auto self = Bootstrap::join(id, first + i, 4, config, soon());
        std::vector<std::byte> all(4);
        all[static_cast<std::size_t>(first + i)] = static_cast<std::byte>(first + i + 1);
        self->all_gather(all, 1, soon());
        // Every pair, so that each connects to each over the pair of interfaces.
        for (int peer = 0; peer < 4; ++peer) self->send(peer, 5, all);
        for (int peer = 0; peer < 4; ++peer) {
          if (self->recv(peer, 5, soon()) != all) events.put('!');
        }
        ranks[static_cast<std::size_t>(i)] = std::move(self);
        events.put('j');
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", first + i, error.what());
        events.put('e');
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  struct Watch : Observer {
    explicit Watch(const Pipe& to) : events(to) {}
    void on_lost(int, const std::string&) override { events.put('l'); }
    void on_suspect(int, bool suspected) override { events.put(suspected ? 's' : 'c'); }
    void on_left(int) override {}
    void on_abort(int, const std::string&) override {}
    const Pipe& events;
  };
  Watch watch(events);
  if (ranks[0]) ranks[0]->watch(&watch);
  (void)commands.get<char>();
  for (const auto& self : ranks) {
    if (self) self->leave();
  }
}

TEST(Namespaces, TwoHostsJoinTalkAndLoseEachOther) {
  if (geteuid() != 0) GTEST_SKIP() << "needs the right to make network namespaces";
  if (!run("command -v ip")) GTEST_SKIP() << "needs the program ip";
  Config config;  // the interfaces are discovered, not given
  config.set("TIMEOUT", "60s", "test");
  config.set("PEER_LOSS_TIME", "1s", "test");
  Pipe to_a;
  Pipe to_b;
  Pipe from_a;
  Pipe from_b;
  const pid_t b = fork();
  ASSERT_GE(b, 0);
  if (b == 0) {
    alarm(110);
    from_b.put(unshare(CLONE_NEWNET) == 0 ? 'r' : 'x');
    (void)to_b.get<char>();  // the pair is there
    from_b.put(run("ip link set lo up && ip addr add 10.77.0.2/24 dev veth1 && "
                   "ip link set veth1 up")
                   ? 'u'
                   : 'x');
    two_ranks(2, to_b.get<UniqueId>(), config, to_b, from_b);
    _exit(0);
  }
  const pid_t a = fork();
  if (a == 0) {
    alarm(110);
    from_a.put(unshare(CLONE_NEWNET) == 0 ? 'r' : 'x');
    (void)to_a.get<char>();
    from_a.put(run("ip link set lo up && ip link add veth0 type veth peer name veth1 netns " +
                   std::to_string(b) +
                   " && ip addr add 10.77.0.1/24 dev veth0 && "
                   "ip link set veth0 up")
                   ? 'u'
                   : 'x');
    (void)to_a.get<char>();  // the other end is up
    const UniqueId id = make_unique_id(config);
    from_a.put(id);
    std::thread breaker([&] {
      if (to_a.get<char>() != 'd') return;
      run("ip link set veth0 down");
      (void)to_a.get<char>();
      run("ip link set veth0 up");
    });
    two_ranks(0, id, config, to_b, from_a);  // to_b: nobody commands it
    _exit(0);
  }
  const auto finish = [&] {
    for (const pid_t pid : {a, b}) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
  };
  if (from_a.get<char>() != 'r' || from_b.get<char>() != 'r') {
    finish();
    GTEST_SKIP() << "unshare(CLONE_NEWNET) is not permitted";
  }
  to_a.put('p');
  if (from_a.get<char>() != 'u') {
    finish();
    GTEST_SKIP() << "a veth pair cannot be made";
  }
  to_b.put('p');
  EXPECT_EQ(from_b.get<char>(), 'u');
  to_a.put('g');
  const auto id = from_a.get<UniqueId>();
  EXPECT_EQ(decode_unique_id(id).address.text().substr(0, 10), "10.77.0.1:");
  to_b.put(id);
  for (const Pipe* from : {&from_a, &from_a, &from_b, &from_b}) EXPECT_EQ(from->get<char>(), 'j');

  // The network goes away and comes back: a suspicion, not a death.
  to_a.put('d');
  EXPECT_EQ(from_a.get<char>(), 's');
  EXPECT_EQ(from_b.get<char>(), 's');
  to_a.put('u');
  const auto wait_for = [](const Pipe& from, char wanted) {
    for (;;) {
      const char event = from.get<char>();
      if (event == wanted) return true;
      if (event != 's' && event != 'c') return false;
    }
  };
  EXPECT_TRUE(wait_for(from_a, 'c'));
  // A death over there.
  kill(b, SIGKILL);
  EXPECT_TRUE(wait_for(from_a, 'l'));
  EXPECT_TRUE(wait_for(from_a, 'l'));
  finish();
}

}  // namespace
}  // namespace ropewalk::bootstrap
