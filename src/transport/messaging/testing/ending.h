// Connections that end at any moment of their making, while a thread uses another one of the same
// endpoint and so drives it for all.
#pragma once

#include <atomic>
#include <memory>
#include <thread>

#include "transport/messaging/testing/stand_in.h"
#include "transport/transport.h"

namespace ropewalk::transport::messaging::testing {

/// @return how many messages came over the connection that stayed
inline int end_connections_beside_another(Transport& transport, int connections) {
  std::unique_ptr<SendConnection> sender;
  std::unique_ptr<ReceiveConnection> receiver;
  connect_to_itself(transport, sender, receiver);
  std::atomic<bool> over = false;
  int came = 0;
  std::thread user([&] {
    while (!over) {
      const char out = 1;
      char in = 0;
      const ReceiveBuffer buffer{&in, 1, 5, nullptr};
      std::unique_ptr<Request> receive;
      std::unique_ptr<Request> send;
      until([&] { return (receive = receiver->receive({&buffer, 1})) != nullptr; });
      until([&] { return (send = sender->send(&out, 1, 5, nullptr)) != nullptr; });
      until([&] { return receive->test().has_value(); });
      until([&] { return send->test().has_value(); });
      came += in;
    }
  });
  for (int i = 0; i < connections; ++i) {
    const auto listener = transport.listen(0);
    const auto connector = transport.connect(0, listener->handle());
    std::unique_ptr<SendConnection> ending_sender;
    std::unique_ptr<ReceiveConnection> ending_receiver;
    until([&] {
      if (!ending_sender) ending_sender = connector->poll();
      if (!ending_receiver) ending_receiver = listener->accept();
      return ending_sender && ending_receiver;
    });
    // Before its patterns, among them, after them.
    for (int turn = 0; turn < i && !ending_sender->ready(); ++turn) std::this_thread::yield();
    ending_receiver.reset();
  }
  over = true;
  user.join();
  return came;
}

}  // namespace ropewalk::transport::messaging::testing
