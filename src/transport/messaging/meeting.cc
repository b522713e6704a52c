#include "transport/messaging/meeting.h"

#include <optional>
#include <vector>

#include "core/log.h"

namespace ropewalk::transport::messaging {

MeetingListener::MeetingListener(std::string provider, const tcp::Interface& interface,
                                 const tcp::HandleMark& mark, tcp::Linger& linger, Make make)
    : provider_(std::move(provider)),
      linger_(linger),
      make_(std::move(make)),
      acceptor_(interface),
      handle_(tcp::encode(acceptor_.target(), mark)) {}

std::unique_ptr<ReceiveConnection> MeetingListener::accept() {
  linger_.poll();
  std::optional<tcp::Acceptor::Accepted> accepted = acceptor_.accept();
  if (!accepted) return nullptr;
  if (accepted->sockets.size() != 1) {
    log::warn("{}: {} connected with {} sockets; dropped", provider_, accepted->peer,
              accepted->sockets.size());
    return nullptr;
  }
  return make_(
      SideChannel::accepting(std::move(accepted->sockets.front()), acceptor_.target().reply),
      std::move(accepted->peer));
}

std::unique_ptr<SendConnection> MeetingConnector::poll() {
  linger_.poll();
  std::optional<std::vector<FileDescriptor>> sockets = dialer_.poll();
  if (!sockets) return nullptr;
  const tcp::Target& target = dialer_.target();
  return make_(SideChannel::connecting(std::move(sockets->front()), target.proof, target.reply),
               target.address.text());
}

}  // namespace ropewalk::transport::messaging
