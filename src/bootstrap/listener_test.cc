#include "bootstrap/listener.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bootstrap/service.h"
#include "core/log.h"
#include "core/socket.h"
#include "core/testing/in_child.h"
#include "core/testing/sanitizers.h"

namespace ropewalk::bootstrap {
namespace {

/// The next bytes that a client reads; empty if the other end has closed.
std::vector<std::byte> read_some(const FileDescriptor& socket) {
  pollfd waiting{socket.get(), POLLIN, 0};
  EXPECT_EQ(poll(&waiting, 1, 30'000), 1);
  std::array<std::byte, 256> buffer{};
  const ssize_t got = recv(socket.get(), buffer.data(), buffer.size(), 0);
  return {buffer.begin(), buffer.begin() + std::max<ssize_t>(got, 0)};
}

TEST(Listener, AfterStopNobodyGetsAProof) {
  const Secret secret{1, 2, 3};
  const ServiceId id{4, 5, 6};
  SocketAddress address = resolve("127.0.0.1:1").front();
  address.set_port(0);
  FileDescriptor socket = listen_on(address, &address);

  struct Kept {
    std::unique_ptr<Listener> listener;
    std::vector<std::unique_ptr<Connection>> accepted;
  };
  Service service;
  service.post([&] {
    const auto kept = std::make_shared<Kept>();
    service.keep(kept);
    kept->listener =
        std::make_unique<Listener>(service, std::move(socket), secret, id,
                                   [kept = kept.get()](std::unique_ptr<Connection> connection) {
                                     connection->set_owner({});
                                     kept->accepted.push_back(std::move(connection));
                                     kept->listener->stop();
                                   });
  });
  std::vector<FileDescriptor> clients;
  std::vector<Session> sessions;
  for (int i = 0; i < 2; ++i) {
    FileDescriptor client = start_connect(address);
    sessions.push_back(Session::client(secret, id, Claims{}));
    sessions.back().feed(read_some(client));
    ASSERT_FALSE(sessions.back().output().empty());
    clients.push_back(std::move(client));
  }
  // Both responses wait for the thread, which then gets them at once.
  std::promise<void> sent;
  service.post([go = sent.get_future().share()] { go.wait(); });
  for (std::size_t i = 0; i < 2; ++i) {
    const std::span<const std::byte> response = sessions[i].output();
    ASSERT_EQ(send(clients[i].get(), response.data(), response.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(response.size()));
  }
  sent.set_value();
  int proven = 0;
  for (std::size_t i = 0; i < 2; ++i) {
    const std::vector<std::byte> proof = read_some(clients[i]);
    if (!proof.empty()) sessions[i].feed(proof);
    proven += sessions[i].established() ? 1 : 0;
  }
  EXPECT_EQ(proven, 1);
}

// Without a pause the thread would do nothing but try, and say so each time.
TEST(Listener, WithoutDescriptorsTriesEvery20Milliseconds) {
  if (ropewalk::testing::kAddressSanitizer) {
    GTEST_SKIP()
        << "the sanitizer of undefined behaviour, built beside that of addresses, looks at "
           "objects through pipes, and without descriptors takes good ones for bad";
  }
  EXPECT_EQ(ropewalk::testing::in_child([] {
              log::configure("NONE", "", "");
              SocketAddress address = resolve("127.0.0.1:1").front();
              address.set_port(0);
              FileDescriptor socket = listen_on(address, &address);
              const FileDescriptor client = start_connect(address);
              Service service;
              const rlimit none{0, 0};
              EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
              std::atomic<int> tries{0};
              const auto begin = Service::Clock::now();
              service.post([&] {
                service.keep(std::make_shared<Listener>(
                    service, std::move(socket), Secret{}, ServiceId{},
                    [](const std::unique_ptr<Connection>&) { ADD_FAILURE() << "no descriptor"; },
                    [&](const std::string&) { ++tries; }));
              });
              while (tries < 3) std::this_thread::sleep_for(std::chrono::milliseconds(40));
              const int tried = tries;
              EXPECT_GE(Service::Clock::now() - begin, (tried - 1) * std::chrono::milliseconds(20));
              return 0;
            }),
            0);
}

}  // namespace
}  // namespace ropewalk::bootstrap
