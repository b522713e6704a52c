// Making the side channels of connections over a message-passing library: listener and connector.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "transport/messaging/side_channel.h"
#include "transport/messaging/tcp/handshake.h"
#include "transport/transport.h"

namespace ropewalk::transport::messaging {

/// Hands out receiving ends, each with a side channel to a peer that knows the handle's secret.
class MeetingListener final : public Listener {
 public:
  using Make =
      std::function<std::unique_ptr<ReceiveConnection>(SideChannel side, std::string peer)>;
  /// `provider` is for messages, `mark` distinguishes its handles from others'.
  MeetingListener(std::string provider, const tcp::Interface& interface,
                  const tcp::HandleMark& mark, tcp::Linger& linger, Make make);
  [[nodiscard]] const Handle& handle() const override { return handle_; }
  std::unique_ptr<ReceiveConnection> accept() override;

 private:
  const std::string provider_;
  tcp::Linger& linger_;
  const Make make_;
  tcp::Acceptor acceptor_;
  Handle handle_;
};

class MeetingConnector final : public Connector {
 public:
  using Make = std::function<std::unique_ptr<SendConnection>(SideChannel side, std::string peer)>;
  MeetingConnector(const tcp::Interface& interface, const tcp::Target& target, tcp::Linger& linger,
                   Make make)
      : linger_(linger), make_(std::move(make)), dialer_(interface, target, 1) {}
  std::unique_ptr<SendConnection> poll() override;

 private:
  tcp::Linger& linger_;
  const Make make_;
  tcp::Dialer dialer_;
};

}  // namespace ropewalk::transport::messaging
