#include "bootstrap/listener.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <future>
#include <memory>
#include <vector>

#include "bootstrap/service.h"
#include "bootstrap/socket.h"

namespace ropewalk::bootstrap {
namespace {

/// What a client reads next; nothing when the other end has closed.
std::vector<std::byte> read_some(const Socket& socket) {
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
  Socket socket = listen_on(address, &address);

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
  std::vector<Socket> clients;
  std::vector<Session> sessions;
  for (int i = 0; i < 2; ++i) {
    Socket client = start_connect(address);
    sessions.push_back(Session::client(secret, id, Claims{}));
    sessions.back().feed(read_some(client));
    ASSERT_FALSE(sessions.back().output().empty());
    clients.push_back(std::move(client));
  }
  // Both responses wait for the thread, which then is told of them at once.
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

}  // namespace
}  // namespace ropewalk::bootstrap
